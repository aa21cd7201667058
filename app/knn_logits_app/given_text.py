"""The tabs for a text that exists already: Explain shows its sources, Evaluate its perplexity."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten
from typing import Any

import gradio as gr

from knn_logits import evaluate
from knn_logits.hosting import Deadline
from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import MODEL, Controls, Server
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, friendly, text_of
from knn_logits_app.session import Session, Stores, settings_of

# The most characters of a text that is measured.
MOST_MEASURED = 40_000
# A smaller change of the perplexity may be noise.
_LEAST_CHANGE = 0.005
_WAITING: dict[str, Any] = {**MODEL, "show_progress": "full"}


def build_explain(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the places of its answers."""
    session = server.session
    text, button = _text_and_button(
        "Explain",
        label="Any text: yours, a model’s, a document’s",
        value=session.library.sample_passage(),
        info="It is compared with the documents, word for word.",
        lines=4,
        max_length=MOST_CHARACTERS,
    )
    output = page_parts.answers_place(elem_id="explained")

    def on_explain(request: gr.Request, *values: Any) -> str:
        try:
            lookup, (text,) = page_parts.split(values)
            private = server.visitors.stores(request.session_hash)
            answers = {"text": session.explain(text_of(text), lookup, private)}
            return views.frame(answers, {"values": values}, kind="explain")
        except Exception as error:
            return views.message(friendly(error))

    inputs = [*controls.lookup, text]
    for event in (button.click, text.submit):
        event(on_explain, inputs, [output], trigger_mode="always_last", **_WAITING)
    return [output]


def build_evaluate(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
    text, button = _text_and_button(
        "Evaluate",
        label="A text to predict",
        placeholder="Paste a text that the documents do not contain.",
        info="The memory knows the documents word for word, so they would measure nothing.",
        lines=5,
        max_length=MOST_MEASURED,
    )
    output = page_parts.place(content="${value}", elem_id="evaluated")

    def on_evaluate(request: gr.Request, *values: Any) -> Iterator[str]:
        yield ""  # the browser would not draw the same line again that it has removed
        try:
            lookup, (text,) = page_parts.split(values)
            visitor = request.session_hash
            private, deadline = server.visitors.stores(visitor), server.session.limits.deadline()
            with server.visitors.running(visitor, deadline, "evaluate"):
                yield measured_html(server.session, text, lookup, deadline, private)
        except Exception as error:
            yield views.notice(friendly(error), kind="error")

    inputs = [*controls.lookup, text]
    button.click(on_evaluate, inputs, [output], trigger_mode="always_last", **_WAITING)


def _text_and_button(name: str, **box: Any) -> tuple[gr.Textbox, gr.Button]:
    """Lays out the box of a text and the button below it."""
    text = gr.Textbox(max_lines=14, elem_id=f"{name.lower()}-text", **box)
    with gr.Row(elem_classes="kl-run"):
        button = gr.Button(name, variant="primary", size="md", elem_id=name.lower())
    return text, button


def measured_html(
    session: Session, text: Any, lookup: Lookup, deadline: Deadline, private: Stores | None = None
) -> str:
    """Measures a text, and says as HTML what the memory does to its perplexity."""
    library, text = session.library, text_of(text, most=MOST_MEASURED)
    library.reader.tokens_of(text)
    memory = library.memory.over(session.stores(lookup, private)).asked(**settings_of(lookup))
    total = evaluate(library.model, library.tokenizer, memory, [text], progress=deadline.watch())
    alone, mixed = total.perplexity.lm, total.perplexity.interpolated
    if alone is None or mixed is None:
        line = "Some word has the probability 0, so the perplexity is infinite: choose a smaller λ."
        return views.notice(line, kind="worse")
    change = mixed / alone - 1
    verb, kind = ("lowers", "done") if change < 0 else ("raises", "worse")
    by = f"by {abs(change):.1%}"
    if abs(change) < _LEAST_CHANGE:
        verb, kind, by = "hardly changes", "note", f"({change:+.1%})"
    begins = shorten(text, 50, placeholder=" …")
    line = (
        f"The memory {verb} the perplexity of “{begins}” ({total.tokens:,} tokens) {by}: "
        f"{alone:,.3g} by the model alone, {mixed:,.3g} with the memory. Lower is better."
    )
    if total.is_held:
        line += f" But the documents hold {total.overlap:.1%} of them, so other text gains less."
        kind = "worse"
    return views.notice(line, kind=kind)
