"""The parts that the tabs share: the controls, the places for answers, and the kinds of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from knn_logits import Datastore
from knn_logits.hosting import Setting
from knn_logits_app.requests import LABELS, SETTINGS, Lookup, lookup_of
from knn_logits_app.session import Session
from knn_logits_app.visitors import Visitors

# Who sets the memory's strength: the documents' own settings with their gate, or the visitor.
OWN_SETTINGS, FIXED_SETTINGS = "own", "fixed"
# The effect of each setting.
_ABOUT = {
    "lmbda": "0: the model alone. 1: the documents alone.",
    "k": "Places in the documents that vote on each word.",
    "temperature": "Small: the nearest place decides. Large: all count the same.",
}

# Events of this kind run the model, and wait in one queue. A new one replaces that before it.
MODEL: dict[str, Any] = {
    "concurrency_id": "model",
    "trigger_mode": "multiple",
    "api_visibility": "private",
    "show_progress": "hidden",
}
# Events of this kind read a long text. They wait in another queue, and have more time.
LONG: dict[str, Any] = {**MODEL, "concurrency_id": "long"}
LONG_TIMES = 10
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
    """The model and visitors that the handlers of a page work with."""

    session: Session
    visitors: Visitors


@dataclass
class Controls:
    """The controls that all tabs share; `prompt` is of the form that writes.

    Attributes:
        first: The answer to the first example, which the page shows before a visitor asks anything.
    """

    stores: Any
    strength: Any
    settings: dict[str, Any]
    first: str
    prompt: Any = None

    @property
    def lookup(self) -> list[Any]:
        """The controls whose values `split` turns into a request."""
        return [self.stores, self.strength, *self.settings.values()]


def enter(box: Any, button: str) -> None:
    """Makes Enter in a box of one line press a button; Shift and Enter break the line."""
    box.submit(js=f"() => {{ document.getElementById('{button}').click(); }}", **INSTANT)


def run_at(event: Any, server: Server, name: str, **how: Any) -> None:
    """Runs the model at an event, in place of what waits; it can be stopped until it has ended."""
    js = f"(...all) => {{ knnLogits.reading('{name}', 1); return all; }}"
    run = event(js=js, validator=stopping_first(server, name), **{**MODEL, **how})
    at_end(run, f"knnLogits.reading('{name}', -1);")


def at_end(run: Any, js: str) -> None:
    """Runs a script in the browser when a request has ended."""
    # In gradio a refused request triggers the second of these alone, and every other one the first.
    for ended in (run.then, run.failure):
        ended(js=f"() => {{ {js} }}", **INSTANT)


def stop_button(server: Server, name: str, *kinds: str) -> None:
    """Adds a button that stops some kinds of work. The browser enables it while there is any."""
    stop = gr.Button("Stop", size="md", min_width=70, interactive=False, elem_id=name)
    stop.click(stopping(server, *kinds), **LIGHT)


def setting_control(declared: Setting, value: Any) -> Any:
    """Adds the control of a number."""
    name = declared.name
    shared: dict[str, Any] = {"label": LABELS[name], "info": _ABOUT[name], "elem_id": name}
    most = declared.limit if declared.limit is not None else declared.most
    if declared.least is None or most is None:
        return unchecked(gr.Number(value, **shared))
    step = 1 if declared.kind is int else 0.01
    return unchecked(gr.Slider(declared.least, most, value, step=step, **shared))


def unchecked(control: Any) -> Any:
    """Lets `requests` check a control's values: gradio's refusal would reach nobody."""
    control.preprocess = lambda payload: payload
    return control


def values_of(store: Datastore) -> dict[str, Any]:
    """A datastore's own settings, at which the controls begin."""
    record = store.manifest.settings
    return {name: getattr(record, name, declared.default) for name, declared in SETTINGS.items()}


def split(values: Sequence[Any]) -> tuple[Lookup, Sequence[Any]]:
    """Splits the values of a handler, which are those of `Controls.lookup`, followed by others."""
    size = len(SETTINGS) + 2
    (stores, strength, *settings), rest = values[:size], values[size:]
    fixed = dict(zip(SETTINGS, settings, strict=True)) if strength == FIXED_SETTINGS else {}
    return lookup_of(stores, fixed), rest


def stopping_first(server: Server, kind: str) -> Callable[..., Any]:
    """Makes a validator that stops the visitor's work of a kind before a new request waits."""
    stop = stopping(server, kind)

    def validate(request: gr.Request, *values: Any) -> Any:
        stop(request)
        return [None] * len(values) if len(values) > 1 else None

    return validate


def stopping(server: Server, *kinds: str) -> Callable[[gr.Request], None]:
    """Makes a handler that stops the visitor's work of some kinds, also what waits in the queue."""

    def stop(request: gr.Request) -> None:
        for kind in kinds:
            server.visitors.stop(request.session_hash, kind, arrived(request))

    return stop


def arrived(request: gr.Request) -> float:
    """When a request came to the server, in seconds: it may have waited since then."""
    scope: Any = request.request and request.request.scope
    return float(scope["arrived"])


def place(
    js: str | None = None,
    value: str = "",
    *,
    kind: str = "kl-out",
    content: str = "",
    **settings: Any,
) -> Any:
    """Adds a place that scripts fill, or with `${value}` as its content one for HTML.

    gradio inserts the value there, and does not read it as a template.
    """
    return gr.HTML(
        value,
        html_template=f'<div class="{kind}">{content}</div>',
        js_on_load=js,
        apply_default_css=False,
        **settings,
    )


def answers_place(value: str = "", **settings: Any) -> Any:
    """Adds a place for answers, which triggers "ask" to write again and "read" for a document."""
    js = 'knnLogits.mount(element, props, trigger, watch, ["ask", "read"]);'
    return place(js, value, **settings)
