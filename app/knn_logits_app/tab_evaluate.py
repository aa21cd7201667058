"""The tab that measures a text without and with kNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from knn_logits_app import layout, views
from knn_logits_app.figures import measured_html
from knn_logits_app.measuring import MOST_CHARACTERS
from knn_logits_app.session import friendly

if TYPE_CHECKING:
    from knn_logits_app.layout import Controls, Server


def build(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
    session = server.session
    library = session.first
    documents = 8 if library.reading.sources else 4
    source = layout.followed(
        server,
        controls,
        lambda one: {"visible": one.reading.sources},
        value=layout.first_sources(library, documents),
        label="Sources, one on each line",
        lines=5,
        max_lines=14,
        max_length=MOST_CHARACTERS,
        elem_id="evaluate-sources",
    )
    text = layout.followed(
        server,
        controls,
        lambda one: {"label": "Their targets" if one.reading.sources else "A text to predict"},
        value=library.sample_text or layout.beginning(library, documents),
        info="Choose a text that is not in the datastore, since the memory knows its own by heart.",
        lines=5,
        max_lines=14,
        max_length=MOST_CHARACTERS,
        elem_id="evaluate-text",
    )
    button = gr.Button("Evaluate", variant="primary", size="md", elem_id="evaluate")
    output = layout.html_place(elem_id="evaluated")

    def on_evaluate(request: gr.Request, *values: Any) -> str:
        try:
            model, lookup, (read, given) = layout.split(server, values)
            visitor = request.session_hash
            library = session.library(model)
            own = server.visitors.stores(visitor)
            with server.visitors.running(visitor, session.limits.deadline()) as deadline:
                wanted = lookup()
                found = server.work.measure(library, given, wanted, deadline, own, read)
            return measured_html(found)
        except Exception as error:
            return views.notice(friendly(error), kind="error")

    def check(*values: Any) -> None:
        layout.check(server, values, *values[-2:], most=MOST_CHARACTERS)

    button.click(
        on_evaluate,
        [*controls.lookup, source, text],
        [output],
        validator=layout.validator(check),
        **{**layout.MODEL, "show_progress": "full"},
    )
