"""The tab that writes a text with kNN, without it, or both at the same time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from knn_logits.hosting import Deadline
from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.requests import (
    LABELS,
    MOST_CHARACTERS,
    Rewriting,
    content_of,
    friendly,
    writing_of,
)
from knn_logits_app.session import Answer

# The form's fields about the writing, which follow the prompt and the switch.
_SAMPLING_FIELDS = ("new_tokens", "sentence", "sampling_temperature", "seed")


def build(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the places of its answers."""
    library = server.session.library
    prompt = gr.Textbox(
        label="Begin a text, and the model continues it",
        value=library.examples[0] if library.examples else "",
        lines=1,
        max_lines=8,
        max_length=MOST_CHARACTERS,
        elem_id="prompt",
    )
    with gr.Row(elem_classes="kl-chips"):
        examples = [gr.Button(example, size="sm") for example in library.examples]
    with gr.Row(elem_classes="kl-run"):
        write = gr.Button("Write", variant="primary", size="md", min_width=110, elem_id="write")
        page_parts.stop_button(server, "write-stop", "write")
        compare = gr.Checkbox(
            True,
            label="Compare with the model alone",
            container=False,
            min_width=220,
            elem_id="compare",
        )
        # app.css shows what it stands for.
        gr.Checkbox(label="Set length and sampling", container=False, elem_id="set-sampling")
    controls.prompt = prompt
    inputs = [*controls.lookup, prompt, compare, *_sampling(server)]
    output = page_parts.answers_place(controls.first, elem_id="answers")

    def on_write(request: gr.Request, *values: Any) -> Iterator[str]:
        try:
            yield from write_json(server, values, request)
        except Exception as error:
            yield views.message(friendly(error))

    def on_ask(request: gr.Request, event: gr.EventData) -> Iterator[str]:
        try:
            rewriting = content_of(Rewriting, event._data)
            yield from write_json(server, rewriting.values, request, rewriting)
        except Exception as error:
            yield views.message(friendly(error))

    run: dict[str, Any] = {"fn": on_write, "inputs": inputs, "outputs": [output]}
    page_parts.run_at(write.click, server, "write", **run)
    page_parts.enter(prompt, "write")
    again = output.ask(on_ask, outputs=[output], **page_parts.MODEL)
    page_parts.at_end(again, "knnLogits.reading('write', -1);")
    for button, example in zip(examples, library.examples, strict=True):
        js = f"() => [{json.dumps(example)}]"
        chosen = button.click(outputs=[prompt], js=js, **page_parts.INSTANT)
        page_parts.run_at(chosen.then, server, "write", **run)
    return [output]


def _sampling(server: Server) -> list[Any]:
    """Adds the controls of the length and the sampling."""
    most = server.session.limits.new_tokens
    length, sentence, randomness, seed = (LABELS[name] for name in _SAMPLING_FIELDS)
    with gr.Row(elem_id="sampling"):
        controls = [
            gr.Slider(1, most, min(60, most), step=1, label=length),
            gr.Checkbox(True, label=sentence),
            gr.Slider(0, 3, 0, step=0.05, label=randomness, info="0: the likeliest word."),
            gr.Number(0, label=seed, precision=0, minimum=0),
        ]
    return [page_parts.unchecked(control) for control in controls]


def first_answer(server: Server) -> str:
    """Answers the first example, which the page shows before a visitor asks anything."""
    library = server.session.library
    if not library.examples:
        return ""
    # These are the first values of the page's form.
    values = [
        library.chosen, page_parts.OWN_SETTINGS, *page_parts.values_of(library.store).values(),
        library.examples[0], True,
        min(60, server.session.limits.new_tokens), True, 0, 0,
    ]  # fmt: skip
    *_, answer = write_json(server, values, None)
    return answer


def write_json(
    server: Server,
    values: Sequence[Any],
    request: gr.Request | None,
    rewriting: Rewriting | None = None,
) -> Iterator[str]:
    """Yields the answers while they are written, as JSON for the browser.

    A request that was stopped or replaced while it waited has an answer without words.
    """
    session, visitor = server.session, request.session_hash if request else None
    lookup, (prompt, compare, *how) = page_parts.split(values)
    sampling = dict(zip(_SAMPLING_FIELDS, how, strict=True))
    writing = writing_of(prompt, lookup, compare=compare, **sampling)
    # The turn tells the frames of this request from those of earlier ones: it grows.
    content: dict[str, Any] = {"values": list(values), "turn": time.monotonic_ns() // 1000}
    kind: dict[str, Any] = {}
    if rewriting is not None:
        lookup_without = replace(writing.lookup, without=tuple(rewriting.without))
        writing = replace(writing, lookup=lookup_without, compare=False)
        content["without"] = rewriting.without
        kind = {"kind": "without", "named": rewriting.named}
    private = server.visitors.stores(visitor)
    since = page_parts.arrived(request) if request else math.inf
    # The first answer is shown whole, however slow the machine is.
    limit = session.limits.deadline() if request else Deadline()
    with server.visitors.running(visitor, limit, "write", since) as deadline:
        if deadline.cancelled:
            answer = Answer(prompt, knn=True, done=True, stopped="stopped")
            yield views.frame({"knn": answer}, content, **kind)
            return
        for answers in session.write(writing, deadline, private):
            yield views.frame(answers, content, **kind)
