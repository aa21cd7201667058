"""The tab that shows the sources of a text that exists already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from knn_logits_app import layout, views
from knn_logits_app.requests import MOST_CHARACTERS, text_of
from knn_logits_app.session import friendly

if TYPE_CHECKING:
    from knn_logits_app.layout import Controls, Server

TEXT_LABEL = "Any text: yours, a model’s, a document’s"
TARGET_LABEL = "The target of this source, written by you, a model or a translator"


def build(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the place of its answers."""
    library = server.session.first
    source = layout.followed(
        server,
        controls,
        lambda one: {"visible": one.reading.sources},
        value=layout.first_sources(library),
        label="The source: what the model reads",
        lines=2,
        max_lines=8,
        max_length=MOST_CHARACTERS,
        elem_id="explain-source",
    )
    text = layout.followed(
        server,
        controls,
        lambda one: {"label": TARGET_LABEL if one.reading.sources else TEXT_LABEL},
        value=layout.passage_of(library),
        info="Each word is coloured by how much the memory would have helped to write it.",
        lines=4,
        max_lines=14,
        max_length=MOST_CHARACTERS,
        elem_id="explain-text",
    )
    button = gr.Button("Explain", variant="primary", elem_id="explain")
    output = layout.answers_place(elem_id="explained")

    def on_explain(request: gr.Request, *values: Any) -> str:
        try:
            model, lookup, (read, given) = layout.split(server, values)
            reads = server.session.library(model).reading.sources
            library = server.session.library(model)
            own = server.visitors.stores(request.session_hash)
            source = text_of(read, "source") if reads else None
            answer = server.work.explain(library, text_of(given), lookup(), own, source)
            asked = {"values": values, "model": library.name}
            return views.frame({"text": answer}, asked, kind="explain")
        except Exception as error:
            return views.message(friendly(error))

    run: dict[str, Any] = {
        "fn": on_explain,
        "inputs": [*controls.lookup, source, text],
        "outputs": [output],
        "validator": layout.validator(lambda *values: layout.check(server, values, *values[-2:])),
        **layout.MODEL,
        "show_progress": "full",
    }
    button.click(**run)
    text.submit(**run)
    return output
