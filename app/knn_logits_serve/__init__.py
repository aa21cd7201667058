"""A server with OpenAI's interface for a model with its datastores. It names the sources.

It uses the public names of `knn_logits`, and parts of the page. `serve` starts it, and `Served` is
a model with its datastores. Importing this package does not load the web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from knn_logits_serve.served import Served
    from knn_logits_serve.server import Settings, serve

__all__ = ["Served", "Settings", "serve"]
_MODULES = {"Served": "served", "Settings": "server", "serve": "server"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
