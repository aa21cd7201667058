"""The tabs for a text that exists already: Explain shows its sources, Evaluate its perplexity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from textwrap import shorten
from typing import Any

import gradio as gr

from knn_logits import evaluate
from knn_logits.hosting import Deadline, overlap_words
from knn_logits_app import page_parts, views
from knn_logits_app.decoding import WINDOWS
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, RequestError, friendly, text_of
from knn_logits_app.session import Session, Stores, settings_of

# The most characters of a text that is measured.
MOST_MEASURED = 10_000
# Fewer tokens measure nothing, and a smaller change of the perplexity may be noise.
_LEAST_TOKENS = 10
_LEAST_CHANGE = 0.005


def build_explain(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the places of its answers."""
    session, output = server.session, page_parts.answers_place(elem_id="explained", render=False)
    most = WINDOWS * session.limits.prompt_tokens

    def explained(values: Any, text: Any, *how: Any) -> str:
        answers = {"text": session.explain(text_of(text), *how)}
        return views.frame(answers, {"values": values}, kind="explain")

    _build(
        server, controls, "explain", output, explained, views.message,
        label="Any text: yours, a model’s, a document’s",
        value=session.library.sample_passage(),
        info=f"It is compared with the documents, word for word: at most {most:,} word pieces.",
        lines=4,
        max_length=MOST_CHARACTERS,
    )  # fmt: skip
    return [output]


def build_evaluate(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
    output = page_parts.place(content="${value}", elem_id="evaluated", render=False)
    for control in controls.lookup:  # it is measured with their values
        control.change(outputs=[output], js="() => ''", **page_parts.INSTANT)

    def measured(_: Any, *how: Any) -> str:
        return measured_html(server.session, *how)

    _build(
        server, controls, "evaluate", output, measured, partial(views.notice, kind="error"),
        label="A text to predict",
        placeholder="Paste a text that the documents do not contain.",
        info="A text copied from the documents gets too good a result: the memory knows its words.",
        lines=5,
        max_length=MOST_MEASURED,
    )  # fmt: skip


def _build(
    server: Server,
    controls: Controls,
    name: str,
    output: Any,
    answer: Callable[..., str],
    refusal: Callable[[str], str],
    **box: Any,
) -> None:
    """Lays out a form, and answers each click until it is stopped or another click replaces it."""
    text = gr.Textbox(max_lines=14, elem_id=f"{name}-text", **box)
    with gr.Row(elem_classes="kl-run"):
        button = gr.Button(name.capitalize(), variant="primary", size="md", elem_id=name)
        page_parts.stop_button(server, f"{name}-stop", name)
    output.render()

    def on_click(request: gr.Request, *values: Any) -> Iterator[Any]:
        visitor, since = request.session_hash, page_parts.arrived(request)
        private = server.visitors.stores(visitor)
        deadline = server.session.limits.deadline(page_parts.LONG_TIMES)
        with server.visitors.running(visitor, deadline, name, since):
            try:
                deadline.check()  # it may have been stopped while it waited
                lookup, (text,) = page_parts.split(values)
                shown = answer(values, text, lookup, deadline, private)
            except Exception as error:
                shown = refusal(friendly(error))
            # Without any value gradio would clear what a newer request shows.
            yield gr.skip() if deadline.cancelled else shown

    page_parts.run_at(
        button.click, server, name,
        **{**page_parts.LONG, "show_progress": "full"},
        fn=on_click, inputs=[*controls.lookup, text], outputs=[output],
    )  # fmt: skip
    page_parts.enter(text, name)


def measured_html(
    session: Session, text: Any, lookup: Lookup, deadline: Deadline, private: Stores | None = None
) -> str:
    """Measures a text, and says as HTML what the memory does to its perplexity."""
    library, text = session.library, text_of(text, most=MOST_MEASURED)
    if library.reader.tokens_of(text) < _LEAST_TOKENS:
        raise RequestError("The text is too short to measure: enter at least ten words.")
    memory = library.memory.over(session.stores(lookup, private)).asked(**settings_of(lookup))
    total = evaluate(
        library.model, library.tokenizer, memory, [text],
        batch_tokens=1024, progress=deadline.watch(),  # it can be stopped between batches
    )  # fmt: skip
    alone, mixed = total.perplexity.lm, total.perplexity.interpolated
    if alone is None or mixed is None:
        line = "Some word has the probability 0, so the perplexity is infinite: choose a smaller λ."
        return views.notice(line, kind="worse")
    change = mixed / alone - 1
    verb, by = "lowers" if change < 0 else "raises", f"by {abs(change):.1%}"
    if abs(change) < _LEAST_CHANGE:
        verb, by = "hardly changes", f"({change:+.1%})"
    begins = shorten(text, 50, placeholder=" …")
    line = (
        f"The memory {verb} the perplexity of “{begins}” ({total.tokens:,} tokens) {by}: "
        f"{alone:,.3g} by the model alone, {mixed:,.3g} with the memory. "
        "Perplexity is the number of words that the model hesitates between. Lower is better."
    )
    if total.overlap:
        line += f" But {overlap_words(total.overlap)}, so other text gains less."
    return views.notice(line)
