"""The tab that measures the perplexity of a text without and with kNN."""

from __future__ import annotations

from typing import Any

import gradio as gr

from knn_logits import evaluate
from knn_logits.hosting import Deadline, settings_line
from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.requests import Lookup, friendly, text_of
from knn_logits_app.session import Session, Stores, settings_of

# The most characters of a text.
MOST_MEASURED = 40_000


def build(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
    text = gr.Textbox(
        label="A text to predict",
        placeholder="Paste a text that the documents do not contain.",
        info="The memory knows the documents word for word, so they would measure nothing.",
        lines=5,
        max_lines=14,
        max_length=MOST_MEASURED,
        elem_id="evaluate-text",
    )
    with gr.Row(elem_classes="kl-run"):
        button = gr.Button("Evaluate", variant="primary", size="md", elem_id="evaluate")
    output = page_parts.place(content="${value}", elem_id="evaluated")

    def on_evaluate(request: gr.Request, *values: Any) -> str:
        try:
            lookup, (text,) = page_parts.split(server, values)
            visitor = request.session_hash
            private, deadline = server.visitors.stores(visitor), server.session.limits.deadline()
            with server.visitors.running(visitor, deadline, "evaluate"):
                return measured_html(server.session, text, lookup(), deadline, private)
        except Exception as error:
            return views.notice(friendly(error), kind="error")

    button.click(
        on_evaluate,
        [*controls.lookup, text],
        [output],
        **{**page_parts.MODEL, "show_progress": "full"},
    )


def measured_html(
    session: Session, text: Any, lookup: Lookup, deadline: Deadline, private: Stores | None = None
) -> str:
    """Measures a text, and shows the figures as HTML."""
    library, text = session.library, text_of(text, most=MOST_MEASURED)
    memory = library.memory.over(session.stores(lookup, private)).asked(**settings_of(lookup))
    result = evaluate(library.model, library.tokenizer, memory, [text], progress=deadline.watch())
    p = result.perplexity
    settings = settings_line(memory.config, symbols=True)
    settings += ", but a gate sets λ for each word" if memory.gate is not None else ""
    return (
        f"{verdict(p.lm, p.interpolated)}<p class='kl-label'>Perplexity of {result.tokens:,} "
        f"tokens: <b>{_short(p.lm)}</b> by the model alone, <b>{_short(p.interpolated)}</b> with "
        f"the memory; lower is better. The memory has {views.text(settings)}.</p>"
    )


def verdict(alone: float | None, mixed: float | None) -> str:
    """Says what the memory does to the perplexity of a text."""
    if alone is None or mixed is None:
        line = "Some word has the probability 0, so the perplexity is infinite: choose a smaller λ."
        return views.notice(line, kind="worse")
    change = mixed / alone - 1
    if abs(change) < 0.005:
        return views.notice("The memory neither helps nor harms on this text.")
    if change < 0:
        line = f"The memory lowers the perplexity of this text by {-change:.0%}."
        return views.notice(line, kind="done")
    line = f"The memory raises the perplexity of this text by {change:.0%}, so it misleads here. "
    return views.notice(f"{line}A smaller λ, or another datastore, may help.", kind="worse")


def _short(value: float | None) -> str:
    if value is None:
        return "∞"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
