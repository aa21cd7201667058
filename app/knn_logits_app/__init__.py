"""The page shows a language model with and without kNN, and the source of every word.

It uses only the public names of `knn_logits`. `launch` starts the page, and a `Library` is a model
with its datastores. Importing this package does not load gradio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from knn_logits_app.library import Library
    from knn_logits_app.server import launch

__all__ = ["Library", "launch"]
_MODULES = {"Library": "library", "launch": "server"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
