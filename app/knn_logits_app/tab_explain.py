"""The tab that shows the sources of a text that exists already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from knn_logits_app import layout, views
from knn_logits_app.requests import text_of
from knn_logits_app.session import friendly

if TYPE_CHECKING:
    from knn_logits_app.layout import Controls, Server


def build(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
    memory = server.session.first
    text = gr.Textbox(
        _example(memory),
        label="Any text: yours, a model’s, a document’s",
        info="Each word is coloured by how much the memory would have helped to write it.",
        lines=4,
        max_lines=14,
        elem_id="explain-text",
    )
    button = gr.Button("Explain", variant="primary", elem_id="explain")
    output = layout.words_html(elem_id="explained")

    def on_explain(
        model: Any, stores: Any, lmbda: Any, k: Any, temperature: Any, text: Any,
        request: gr.Request,
    ) -> str:  # fmt: skip
        try:
            lookup = layout.lookup(server, model, stores, lmbda, k, temperature)
            return explain_html(server, model, text_of(text), lookup, request.session_hash)
        except Exception as error:
            return views.notice(friendly(error), kind="error")

    run: dict[str, Any] = {
        "fn": on_explain,
        "inputs": [*controls.lookup, text],
        "outputs": [output],
        **layout.MODEL,
        "show_progress": "full",
    }
    button.click(**run)
    text.submit(**run)


def explain_html(server: Server, model: Any, text: str, lookup: Any, visitor: str | None) -> str:
    """A text's words and their sources as HTML."""
    session = server.session
    memory = session.memory(model)
    own = server.visitors.stores(visitor)
    metric = session.stores(memory, lookup, own)[0].manifest.metric
    answer = server.gpu(session.explain)(memory, text, lookup, own)
    return views.answers_html({"text": answer}, metric=metric, name="explain")


def _example(memory: Any) -> str:
    """The beginning of the first datastore's first document."""
    store = next(iter(memory.stores.values()))
    document = store.documents[0]
    ids = store.tokens[document.first : document.first + min(document.length, 60)].tolist()
    return str(memory.tokenizer.decode(ids, skip_special_tokens=True)).strip()
