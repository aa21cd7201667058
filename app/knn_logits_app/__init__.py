"""The page that shows a language model with and without kNN, and the source of every word.

It uses the public names of `knn_logits` only. `launch` starts it; `Library` is a model with its
datastores. Neither loads gradio before it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from knn_logits_app.library import Example, Library
    from knn_logits_app.server import launch

__all__ = ["Example", "Library", "launch"]


def __getattr__(name: str) -> Any:
    if name == "launch":
        from knn_logits_app.server import launch

        return launch
    if name in ("Example", "Library"):
        from knn_logits_app import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
