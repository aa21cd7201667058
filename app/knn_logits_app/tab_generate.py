"""The tab that writes a text with kNN, without it, or both at the same time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.requests import (
    MOST_CHARACTERS,
    SETTINGS,
    Rewriting,
    content_of,
    friendly,
    writing_of,
)

PROMPT_LABEL = "Begin a text, or choose one below, and the model continues it"

# The form's fields about the writing, which follow the prompt and the two switches.
_SAMPLING_FIELDS = ("new_tokens", "sentence", "sample", "sampling_temperature", "top_p", "seed")


def build(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the places of its answers."""
    library = server.session.library
    prompt = gr.Textbox(
        label=PROMPT_LABEL,
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
        stop = page_parts.stop_button("Stop", "stop")
        switch: dict[str, Any] = {"value": True, "container": False}
        use = gr.Checkbox(label="Use the memory (kNN)", min_width=180, elem_id="switch", **switch)
        compare = gr.Checkbox(
            label="Compare with the model alone", min_width=220, elem_id="compare", **switch
        )
    controls.use, controls.prompt = use, prompt
    page_parts.fold("Length and sampling", "sampling")
    inputs = [*controls.lookup, prompt, use, compare, *_sampling(server)]
    output = page_parts.answers_place(first_answer(server), elem_id="answers")

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

    run: dict[str, Any] = {
        "fn": on_write,
        "inputs": inputs,
        "outputs": [output],
        # A new answer replaces the one that is being written, before it waits in the queue.
        "validator": page_parts.stopping_first(server, "write"),
        "trigger_mode": "multiple",
        **page_parts.MODEL,
    }
    # Without the memory there is nothing to compare the model with.
    use.change(
        inputs=[use],
        outputs=[compare],
        js="(on) => [{ __type__: 'update', interactive: on }]",
        **page_parts.INSTANT,
    )
    write.click(**run)
    page_parts.enter(prompt, "write")
    output.ask(on_ask, outputs=[output], trigger_mode="multiple", **page_parts.MODEL)
    for button, example in zip(examples, library.examples, strict=True):
        js = f"() => [{json.dumps(example)}]"
        button.click(outputs=[prompt], js=js, **page_parts.INSTANT).then(**run)

    stop.click(page_parts.stopping(server, "write"), **page_parts.LIGHT)
    return [output]


def _sampling(server: Server) -> list[Any]:
    """Adds the controls of the length and the sampling."""
    most = server.session.limits.new_tokens
    with gr.Row(elem_id="sampling", elem_classes="kl-folded"):
        return [
            gr.Slider(1, most, min(60, most), step=1, label="Maximum new tokens"),
            gr.Checkbox(True, label="End with the sentence"),
            gr.Checkbox(False, label="Sample", info="Off: the likeliest word."),
            gr.Slider(0.05, 3, 1, step=0.05, label="Randomness"),
            gr.Slider(0.05, 1, 0.95, step=0.01, label="top-p"),
            gr.Number(0, label="Seed", precision=0, minimum=0),
        ]


def first_answer(server: Server) -> str:
    """Answers the first example, which the page shows before a visitor asks anything."""
    library = server.session.library
    if not library.examples:
        return ""
    # These are the first values of the page's form.
    values = [
        library.chosen, *page_parts.values_of(library.store).values(),
        library.examples[0], True, True,
        min(40, server.session.limits.new_tokens),
        True, False, 1, 0.95, 0,
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

    It yields nothing for a request that was stopped or replaced while it waited.
    """
    session, visitor = server.session, request.session_hash if request else None
    lookup, (prompt, use, compare, *how) = page_parts.split(server, values)
    writing = writing_of(
        prompt,
        lookup() if use is True else None,
        compare=compare,
        **dict(zip(_SAMPLING_FIELDS, how, strict=True)),
    )
    # The turn tells the frames of this request from those of earlier ones: it grows.
    content: dict[str, Any] = {
        "values": list(values), "names": list(SETTINGS), "turn": time.monotonic_ns() // 1000,
    }  # fmt: skip
    kind: dict[str, Any] = {}
    if rewriting is not None:
        if writing.lookup is not None:
            lookup_without = replace(writing.lookup, without=tuple(rewriting.without))
            writing = replace(writing, lookup=lookup_without, compare=False)
        content["without"] = rewriting.without
        kind = {"kind": "without", "named": rewriting.named}
    private = server.visitors.stores(visitor)
    since = page_parts.arrived(request) if request else math.inf
    with server.visitors.running(visitor, session.limits.deadline(), "write", since) as deadline:
        if deadline.cancelled:
            return
        seen: set[str] = set()
        for answers in session.write(writing, deadline, private):
            # A trace is large, and is not sent again with each word of the other answer. The last
            # frame is whole, since the browser may leave out frames that come close together.
            if all(answer.done for answer in answers.values()):
                seen.clear()
            yield views.frame(answers, content, known=seen, **kind)
            seen |= {side for side, answer in answers.items() if answer.trace is not None}
