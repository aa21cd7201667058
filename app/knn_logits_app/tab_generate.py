"""The tab that writes a text with kNN, without it, or both side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from knn_logits_app import layout, views
from knn_logits_app.asking import Ask, ask_of
from knn_logits_app.library import Library, first_words
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, writing_of
from knn_logits_app.session import friendly

if TYPE_CHECKING:
    from knn_logits_app.layout import Controls, Server


PROMPT_LABEL = "Begin a text, or choose one below, and the model continues it"
SOURCE_LABEL = "The source: what the model reads, such as a sentence to translate"

# The form's fields about the writing, which follow the prompt and the two switches.
_HOW = ("new_tokens", "one_sentence", "sample", "sampling_temperature", "top_p", "seed")

# This button replaces gradio's accordion, for the reason that tabs.js gives.
FOLD = (
    '<button type="button" class="kl-fold" id="more" aria-expanded="false" '
    'aria-controls="sampling">Length and sampling</button>'
)
FOLDING = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) button.setAttribute("aria-expanded", String(button.ariaExpanded !== "true"));
});
"""


def first_answer(server: Server) -> str:
    """Answers the first example, which the page shows before a visitor asks anything."""
    session = server.session
    library = session.first
    if not library.examples:
        return ""
    example = library.examples[0]
    store = layout.shown_settings(library.stores[example.stores[0]])
    # These are the first values of the page's form.
    values = [
        library.name, list(example.stores), store.lmbda, store.k, store.temperature,
        example.stores[0] in library.gates, example.prompt, True, True,
        min(40, session.limits.new_tokens),
        # The target of a source may have several sentences.
        not library.reading.sources, False, 1, 0.95, 0,
    ]  # fmt: skip
    shown = ""
    for shown in write_json(server, values, None):  # noqa: B007
        pass
    return shown


def build(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the place of its answers."""
    session = server.session
    library = session.first
    examples = library.examples
    prompt = layout.followed(
        server,
        controls,
        lambda one: {"label": SOURCE_LABEL if one.reading.sources else PROMPT_LABEL},
        value=examples[0].prompt if examples else "",
        lines=2,
        max_lines=8,
        max_length=MOST_CHARACTERS,
        elem_id="prompt",
    )
    with gr.Row(elem_classes="kl-chips"):
        chips = [gr.Button(one.prompt, size="sm") for one in examples]
    with gr.Row(elem_classes="kl-run"):
        write = gr.Button("Write", variant="primary", size="md", min_width=110, elem_id="write")
        stop = gr.Button("Stop", size="md", min_width=80, elem_id="stop")
        knn = gr.Checkbox(
            True, label="Use the memory (kNN)", container=False, min_width=180, elem_id="switch"
        )
        compare = gr.Checkbox(
            True,
            label="Compare with the model alone",
            container=False,
            min_width=220,
            elem_id="compare",
        )
    controls.use, controls.prompt = knn, prompt
    gr.HTML(FOLD, js_on_load=FOLDING, apply_default_css=False)
    with gr.Row(elem_id="sampling"):
        most = session.limits.new_tokens
        length = gr.Slider(1, most, min(60, most), step=1, label="New tokens, at most")
        sentence = gr.Checkbox(library.one_sentence, label="End with the sentence")
        sample = gr.Checkbox(False, label="Sample", info="Otherwise the likeliest word is taken.")
        heat = gr.Slider(0.05, 3, 1, step=0.05, label="Sampling temperature")
        top_p = gr.Slider(0.05, 1, 0.95, step=0.01, label="top-p")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0)
    output = layout.answers_place(first_answer(server), elem_id="answers")

    def on_write(request: gr.Request, *values: Any) -> Iterator[str]:
        try:
            yield from write_json(server, values, request.session_hash)
        except Exception as error:
            yield views.message(friendly(error))

    def on_ask(request: gr.Request, event: gr.EventData) -> Iterator[str]:
        try:
            ask = ask_of(event._data, len(inputs))
            check(*ask.values)
            yield from write_json(server, ask.values, request.session_hash, ask)
        except Exception as error:
            yield views.message(friendly(error))

    inputs = [
        *controls.lookup, prompt, knn, compare, length, sentence, sample, heat, top_p, seed,
    ]  # fmt: skip

    def check(*values: Any) -> None:
        _, _, (text, _, _, *how) = layout.split(server, values)
        given = {name: one for name, one in zip(_HOW, how, strict=True) if one is not None}
        layout.check(server, values, text)
        wanted = writing_of("text", None, **given)
        session.limits.check(new_tokens=wanted.new_tokens)

    run: dict[str, Any] = {
        "fn": on_write,
        "inputs": inputs,
        "outputs": [output],
        "validator": layout.validator(check),
        **layout.MODEL,
    }
    # Without the memory there is nothing to compare the model with.
    knn.change(
        inputs=[knn],
        outputs=[compare],
        js="(on) => [{ __type__: 'update', interactive: on }]",
        **layout.INSTANT,
    )
    write.click(**run)
    output.ask(on_ask, outputs=[output], **layout.MODEL)
    for chip, example in zip(chips, examples, strict=True):
        taken = chip.click(
            outputs=[prompt, controls.stores],
            js=f"() => {json.dumps([example.prompt, list(example.stores)])}",
            **layout.INSTANT,
        )
        taken.then(**run)

    def on_stop(request: gr.Request) -> None:
        server.visitors.stop(request.session_hash)

    stop.click(on_stop, **layout.LIGHT)
    return output


def write_json(
    server: Server, values: Sequence[Any], visitor: str | None, ask: Ask | None = None
) -> Iterator[str]:
    """Yields the answers while they are written, as JSON for the browser.

    Args:
        server: The models and visitors.
        values: The values of the form.
        visitor: The session of the visitor.
        ask: The request to write an answer again, if it is one.
    """
    session = server.session
    model, lookup, (text, use, both, *how) = layout.split(server, values)
    library = session.library(model)
    wanted = writing_of(
        text,
        lookup() if use is True else None,
        compare=both,
        **dict(zip(_HOW, how, strict=True)),
    )
    if ask is not None and wanted.lookup is not None:
        left = max(1, session.limits.new_tokens - len(ask.begun))
        wanted = replace(
            wanted,
            lookup=replace(wanted.lookup, without=ask.without),
            compare=False,
            begun=ask.begun,
            new_tokens=min(wanted.new_tokens, left),
        )
    own = server.visitors.stores(visitor)
    # The turn tells the frames of this request from those of others.
    asked: dict[str, Any] = {
        "values": list(values), "model": library.name, "turn": time.monotonic_ns() // 1000,
    }  # fmt: skip
    asked["chips"] = chips(server, library, wanted.lookup, visitor)
    if ask is not None:
        asked |= {"begun": ask.begun, "without": ask.without}
    with server.visitors.running(visitor, session.limits.deadline()) as deadline:
        known: set[str] = set()
        for answers in server.work.write(library, wanted, deadline, own):
            # A trace is large, and is not sent again with each word of the other answer. The last
            # frame is whole, since the browser may leave out frames that come close together.
            if all(one.done for one in answers.values()):
                known.clear()
            if ask is None:
                yield views.frame(answers, asked, known=known)
            else:
                yield views.frame(answers, asked, kind=ask.kind, note=ask.note)
            known |= {side for side, one in answers.items() if one.trace is not None}


def chips(
    server: Server, library: Library, lookup: Lookup | None, visitor: str | None
) -> list[str]:
    """Returns examples of prompts for the chosen datastores."""
    if lookup is None:
        return []
    own = server.visitors.stores(visitor)
    found = [one.prompt for one in library.examples if set(one.stores) <= set(lookup.stores)]
    for name in lookup.stores:
        if name in own:
            found += first_words(own[name], library.tokenizer)
    return found[:6]
