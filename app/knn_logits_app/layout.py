"""The parts that the tabs share: the controls, the places for answers, and the kinds of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from knn_logits import Datastore, LimitError
from knn_logits_app.library import Library, passage
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, RequestError, lookup_of
from knn_logits_app.session import Session, friendly
from knn_logits_app.visitors import Visitors
from knn_logits_app.work import Work

_CONTROLS = 6

# Events of this kind run the model, and wait in one queue.
MODEL: dict[str, Any] = {
    "concurrency_id": "model",
    "api_visibility": "private",
    "show_progress": "hidden",
}
# Events of this kind are answered at once, and must not wait in that queue.
LIGHT: dict[str, Any] = {
    "concurrency_limit": None,
    "api_visibility": "private",
    "show_progress": "hidden",
}
# The browser handles events of this kind by itself, with `js`. A server's answer could arrive after
# the visitor's next change, and overwrite it.
INSTANT: dict[str, Any] = {"fn": None, "api_visibility": "private", "show_progress": "hidden"}


@dataclass
class Server:
    """The models and visitors that the handlers of a page work with.

    Attributes:
        session: The models.
        visitors: The visitors with their datastores and running requests.
        work: Runs the models.
    """

    session: Session
    visitors: Visitors
    work: Work


@dataclass
class Controls:
    """The controls of the settings, which all tabs share.

    Two controls belong to the form that writes: `use` switches kNN on, and `prompt` has the text.
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
        """The controls whose values `split` turns into a request."""
        return [self.model, self.stores, *self.knobs]

    @property
    def knobs(self) -> list[Any]:
        """The controls of the settings, without the choice of the model and its datastores."""
        return [self.lmbda, self.k, self.temperature, self.gate]


def split(server: Server, values: Sequence[Any]) -> tuple[Any, Callable[[], Lookup], Sequence[Any]]:
    """Splits the values that a handler got.

    Args:
        server: The models and visitors.
        values: The values of `Controls.lookup`, followed by others.

    Returns:
        The model's name, a function that checks the values of the controls, and the other values.
    """
    (model, *controls), rest = values[:_CONTROLS], values[_CONTROLS:]
    return model, lambda: _lookup(server, model, *controls), rest


def _lookup(
    server: Server, model: Any, stores: Any, lmbda: Any, k: Any, temperature: Any, gate: Any
) -> Lookup:
    """Checks the controls' values. A setting that was not changed becomes None."""
    wanted = lookup_of(stores, k, lmbda, temperature, gate)
    known = server.session.library(model).stores
    # A visitor's own text has the settings of the model's first datastore.
    own = shown_settings(known.get(wanted.stores[0], next(iter(known.values()))))
    return replace(
        wanted,
        k=None if wanted.k == own.k else wanted.k,
        lmbda=None if wanted.lmbda == own.lmbda else wanted.lmbda,
        temperature=None if wanted.temperature == own.temperature else wanted.temperature,
    )


def shown_settings(store: Datastore) -> Any:
    """Returns the settings that the controls show at first.

    These are the datastore's settings for writing, if it has any. A control that was not changed
    sets nothing. So a text is explained with all of the datastore's settings for scoring, and
    written with all of its settings for writing, such as RetoMaton.
    """
    return store.manifest.writing or store.manifest.settings


def html_place(js: str | None = None, **settings: Any) -> Any:
    """Adds a place for HTML, which gradio inserts as a value and does not read as a template.

    Args:
        js: JavaScript that runs when the place is mounted.
        settings: Settings of the component.
    """
    return gr.HTML(
        "",
        html_template='<div class="kl-out">${value}</div>',
        js_on_load=js,
        apply_default_css=False,
        **settings,
    )


def answers_place(value: str = "", **settings: Any) -> Any:
    """Adds a place for answers, which the browser draws from JSON.

    It triggers "ask" when a visitor wants an answer written again, and "read" for a document.
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
    """Adds a text box that changes with the chosen model.

    Args:
        server: The models and visitors.
        controls: The controls, in which the model is chosen.
        settings: Returns the settings of the box that depend on the model.
        fixed: The settings of the box that do not depend on it.
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
    """Returns the sources of the first documents of the first datastore, one on each line."""
    store = next(iter(library.stores.values()))
    found = [
        store.documents[number].source for number in range(min(documents, len(store.documents)))
    ]
    return "\n".join(" ".join(one.split()) for one in found if one is not None)


def beginning(library: Library, documents: int = 1) -> str:
    """Returns the beginnings of the first documents of the first datastore as a sample text.

    Targets of an encoder-decoder model are put on a line each.
    """
    store = next(iter(library.stores.values()))
    parts = []
    for number in range(min(documents, len(store.documents))):
        document = store.documents[number]
        ids = store.tokens[document.first : document.first + min(document.length, 80)].tolist()
        parts.append(str(library.tokenizer.decode(ids, skip_special_tokens=True)).strip())
    return ("\n" if library.reading.sources else " ").join(parts)


def passage_of(library: Library) -> str:
    """Returns a sample text of the first datastore: a paragraph of prose if there is one."""
    found = None
    if not library.reading.sources:
        found = passage(next(iter(library.stores.values())), library.tokenizer)
    return found or beginning(library)


def check(server: Server, values: Sequence[Any], *texts: Any, most: int = MOST_CHARACTERS) -> None:
    """Refuses values that a visitor cannot enter on the page.

    Args:
        server: The models and visitors.
        values: The values of a handler. Those of `Controls.lookup` come first.
        texts: The texts among the values.
        most: The most characters of a text.

    Raises:
        KNNLogitsError: when a value is not allowed.
    """
    model, (stores, lmbda, k, temperature, gate) = values[0], values[1:_CONTROLS]
    server.session.library(model)
    if stores is not None and not isinstance(stores, list):
        raise RequestError("The datastores must be a list of names.")
    lookup_of(stores or [""], k, lmbda, temperature, gate)
    if any(one is not None and (not isinstance(one, str) or len(one) > most) for one in texts):
        raise LimitError(
            f"the text is longer than the {most:,} characters that are allowed: shorten it"
        )


def validator(check: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a validator, which gradio calls before a request enters the queue.

    A request that the check refuses is answered with the status 400 and one line.

    Args:
        check: Takes the values of a request, and raises an error if one is not allowed.
    """

    def validate(*values: Any) -> Any:
        try:
            check(*values)
        except Exception as error:
            raise ValueError(friendly(error)) from None
        return [None] * len(values) if len(values) > 1 else None

    return validate
