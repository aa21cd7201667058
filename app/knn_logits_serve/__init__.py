"""A server with OpenAI's interface for a model with its datastores, and the source of every word.

It uses the public names of `knn_logits`, and of the page what writes and draws. `serve` starts it;
`Served` is a model with its datastores. Neither loads the web server before it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from knn_logits_serve.served import Served
    from knn_logits_serve.server import Settings, serve

__all__ = ["Served", "Settings", "serve"]


def __getattr__(name: str) -> Any:
    if name in ("serve", "Settings"):
        from knn_logits_serve import server

        return getattr(server, name)
    if name == "Served":
        from knn_logits_serve.served import Served

        return Served
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
