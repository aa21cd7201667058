"""What the tabs share: the controls at the side, places for answers, kinds of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from knn_logits_app.requests import Lookup, lookup_of
from knn_logits_app.session import Session
from knn_logits_app.visitors import Visitors

ASSETS = Path(__file__).parent / "assets"

# The queue that everything waits in which runs the model.
MODEL: dict[str, Any] = {
    "concurrency_id": "model",
    "api_visibility": "private",
    "show_progress": "hidden",
}
# What answers at once, and must not wait behind it.
LIGHT: dict[str, Any] = {
    "concurrency_limit": None,
    "api_visibility": "private",
    "show_progress": "hidden",
}


@dataclass
class Server:
    """What the handlers of a page work with.

    Attributes:
        session: The models.
        visitors: What belongs to whom.
        gpu: Put around what needs a GPU.
    """

    session: Session
    visitors: Visitors
    gpu: Callable[[Any], Any] = lambda function: function


@dataclass
class Controls:
    """The settings at the side, which all tabs share."""

    model: Any
    stores: Any
    lmbda: Any
    k: Any
    temperature: Any

    @property
    def lookup(self) -> list[Any]:
        """The inputs from which `lookup` makes a request."""
        return [self.model, self.stores, self.lmbda, self.k, self.temperature]


def lookup(server: Server, model: Any, stores: Any, lmbda: Any, k: Any, temperature: Any) -> Lookup:
    """What the controls ask for; a setting left as it was is the datastore's own."""
    wanted = lookup_of(stores, k, lmbda, temperature)
    memory = server.session.memory(model)
    first = memory.stores.get(wanted.stores[0])
    if first is None:
        return wanted
    own = first.manifest.settings
    return Lookup(
        wanted.stores,
        None if wanted.k == own.k else wanted.k,
        None if wanted.lmbda == own.lmbda else wanted.lmbda,
        None if wanted.temperature == own.temperature else wanted.temperature,
    )


def words_html(value: str = "", **settings: Any) -> Any:
    """A place for answers. The value is inserted as a value, never as a part of the template."""
    return gr.HTML(
        value,
        html_template='<div class="kl-out">${value}</div>',
        js_on_load=(ASSETS / "words.js").read_text(encoding="utf-8"),
        apply_default_css=False,
        **settings,
    )
