"""The page shows a language model with and without kNN, and the source of every word.

It uses only the public names of `knn_logits`. `launch` starts the page, and a `Library` is a model
with its datastores. Importing this package does not load gradio.
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
