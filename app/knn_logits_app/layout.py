"""What the tabs share: the controls at the side, places for answers, kinds of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from knn_logits import Datastore, LimitError
from knn_logits_app.library import Library
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, RequestError, lookup_of
from knn_logits_app.session import Session, friendly
from knn_logits_app.visitors import Visitors
from knn_logits_app.work import Work

_CONTROLS = 6

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
# What the browser does by itself, with `js`, before a visitor can do anything else: an answer of
# the server could come after the visitor's next change, and overwrite it.
INSTANT: dict[str, Any] = {"fn": None, "api_visibility": "private", "show_progress": "hidden"}


@dataclass
class Server:
    """What the handlers of a page work with.

    Attributes:
        session: The models.
        visitors: What belongs to whom.
        work: What runs the models.
    """

    session: Session
    visitors: Visitors
    work: Work


@dataclass
class Controls:
    """The settings at the side, which all tabs share, and those of the form.

    `use` says whether kNN is on, `prompt` is the text to begin with.
    """

    model: Any
    stores: Any
    lmbda: Any
    k: Any
    temperature: Any
    gate: Any
    use: Any = None
    prompt: Any = None

    @property
    def lookup(self) -> list[Any]:
        """The inputs from which `split` makes a request."""
        return [self.model, self.stores, self.lmbda, self.k, self.temperature, self.gate]


def split(server: Server, values: Sequence[Any]) -> tuple[Any, Callable[[], Lookup], Sequence[Any]]:
    """What a handler was given: the model's name, what the controls ask for, and the rest.

    Args:
        server: What the handlers of a page work with.
        values: Those of `Controls.lookup`, and others behind them.
    """
    (model, *controls), rest = values[:_CONTROLS], values[_CONTROLS:]
    return model, lambda: _lookup(server, model, *controls), rest


def _lookup(
    server: Server, model: Any, stores: Any, lmbda: Any, k: Any, temperature: Any, gate: Any
) -> Lookup:
    """The controls as a request; a setting left as it was is the datastore's own."""
    wanted = lookup_of(stores, k, lmbda, temperature, gate)
    first = server.session.library(model).stores.get(wanted.stores[0])
    if first is None:
        return wanted
    own = shown_settings(first)
    return replace(
        wanted,
        k=None if wanted.k == own.k else wanted.k,
        lmbda=None if wanted.lmbda == own.lmbda else wanted.lmbda,
        temperature=None if wanted.temperature == own.temperature else wanted.temperature,
    )


def shown_settings(store: Datastore) -> Any:
    """The settings that the controls begin with: those for writing, where a datastore has any.

    A control that is left as it was asks for nothing, so that a text is explained with the
    datastore's settings for scoring, and is followed passage by passage where it is written.
    """
    return store.manifest.writing or store.manifest.settings


def html_place(js: str | None = None, **settings: Any) -> Any:
    """A place for HTML, which is inserted as a value, never as a part of a template.

    Args:
        js: Runs when it is there.
        settings: Of the component.
    """
    return gr.HTML(
        "",
        html_template='<div class="kl-out">${value}</div>',
        js_on_load=js,
        apply_default_css=False,
        **settings,
    )


def answers_place(value: str = "", **settings: Any) -> Any:
    """A place for answers: the browser draws them from their JSON.

    It triggers "ask" when a visitor wants an answer in another way, and "read" for a document.
    """
    return gr.HTML(
        value,
        html_template='<div class="kl-out"></div>',
        js_on_load='knnLogits.mount(element, props, trigger, watch, ["ask", "read"]);',
        apply_default_css=False,
        **settings,
    )


def followed(
    server: Server, controls: Controls, settings: Callable[[Library], dict[str, Any]], **fixed: Any
) -> Any:
    """A text box that suits the chosen model.

    Args:
        server: What the handlers of a page work with.
        controls: Where the model is chosen.
        settings: What differs with the model.
        fixed: What does not.
    """
    libraries, first = server.session.libraries, server.session.first
    box = gr.Textbox(**settings(first), **fixed)
    if len({one.reading.sources for one in libraries.values()}) > 1:

        def follow(name: Any) -> Any:
            found = settings(libraries.get(name, first))
            return gr.Textbox(**{key: one for key, one in found.items() if key != "value"})

        controls.model.input(follow, [controls.model], [box], **LIGHT)
    return box


def first_sources(library: Library, documents: int = 1) -> str:
    """What the first documents of the first datastore were written to, one a line."""
    store = next(iter(library.stores.values()))
    found = [
        store.documents[number].source for number in range(min(documents, len(store.documents)))
    ]
    return "\n".join(" ".join(one.split()) for one in found if one is not None)


def beginning(library: Library, documents: int = 1) -> str:
    """The first documents of the first datastore, as a text to begin with; targets one a line."""
    store = next(iter(library.stores.values()))
    parts = []
    for number in range(min(documents, len(store.documents))):
        document = store.documents[number]
        ids = store.tokens[document.first : document.first + min(document.length, 80)].tolist()
        parts.append(str(library.tokenizer.decode(ids, skip_special_tokens=True)).strip())
    return ("\n" if library.reading.sources else " ").join(parts)


def check(server: Server, values: Sequence[Any], *texts: Any, most: int = MOST_CHARACTERS) -> None:
    """Refuses what the page itself does not let anybody enter.

    Args:
        server: What the handlers of a page work with.
        values: A handler's, those of `Controls.lookup` first.
        texts: The texts among them.
        most: Characters that a field of theirs takes.

    Raises:
        KNNLogitsError: saying what is refused.
    """
    model, (stores, lmbda, k, temperature, gate) = values[0], values[1:_CONTROLS]
    server.session.library(model)
    if stores is not None and not isinstance(stores, list):
        raise RequestError("The datastores must be a list of names.")
    lookup_of(stores or [""], k, lmbda, temperature, gate)
    if any(one is not None and (not isinstance(one, str) or len(one) > most) for one in texts):
        raise LimitError(f"the text is longer than the {most:,} characters that are allowed")


def validator(check: Callable[..., Any]) -> Callable[..., Any]:
    """What gradio calls before a request may wait in the queue.

    A request that the check refuses is answered with the status 400 and one line.

    Args:
        check: Called with the request's values; raises for what is not allowed.
    """

    def validate(*values: Any) -> Any:
        try:
            check(*values)
        except Exception as error:
            raise ValueError(friendly(error)) from None
        return [None] * len(values) if len(values) > 1 else None

    return validate
