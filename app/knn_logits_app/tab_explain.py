"""The tab that shows the sources of a text that exists already."""

from __future__ import annotations

from typing import Any

import gradio as gr

from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.requests import MOST_CHARACTERS, SETTINGS, friendly, text_of


def build(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the places of its answers."""
    session = server.session
    text = gr.Textbox(
        label="Any text: yours, a model’s, a document’s",
        value=session.library.sample_passage(),
        info="It is compared with the documents, word for word.",
        lines=4,
        max_lines=14,
        max_length=MOST_CHARACTERS,
        elem_id="explain-text",
    )
    with gr.Row(elem_classes="kl-run"):
        button = gr.Button("Explain", variant="primary", size="md", elem_id="explain")
    output = page_parts.answers_place(elem_id="explained")

    def on_explain(request: gr.Request, *values: Any) -> str:
        try:
            lookup, (text,) = page_parts.split(server, values)
            private = server.visitors.stores(request.session_hash)
            answers = {"text": session.explain(text_of(text), lookup(), private)}
            content = {"values": values, "names": list(SETTINGS)}
            return views.frame(answers, content, kind="explain")
        except Exception as error:
            return views.message(friendly(error))

    run: dict[str, Any] = {
        "fn": on_explain,
        "inputs": [*controls.lookup, text],
        "outputs": [output],
        "trigger_mode": "always_last",
        **page_parts.MODEL,
        "show_progress": "full",
    }
    button.click(**run)
    text.submit(**run)
    return [output]
