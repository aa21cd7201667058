"""The tab that writes: with kNN, without, or both side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from knn_logits_app import layout, views
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, Writing, writing_of
from knn_logits_app.session import Answer, Session, friendly

if TYPE_CHECKING:
    from knn_logits_app.layout import Controls, Server


PROMPT_LABEL = "Begin a text, or take one below; the model goes on"
SOURCE_LABEL = "The source: what the model reads, such as a sentence to translate"

# Not gradio's accordion, for the reason that tabs.js gives.
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


def first_answer(session: Session) -> str:
    """What the page shows before anybody asked: the first example, answered."""
    library = session.first
    if not library.examples:
        return ""
    example = library.examples[0]
    wanted = Writing(
        example.prompt,
        Lookup(example.stores, gate=True),
        compare=True,
        new_tokens=min(40, session.limits.new_tokens),
        # A source may hold several sentences.
        one_sentence=not library.reading.sources,
    )
    answers: dict[str, Answer] = {}
    for frame in session.write(library, wanted, session.limits.deadline()):
        answers = frame
    metric = library.stores[example.stores[0]].manifest.metric
    return views.answers_html(answers, metric=metric, name="write")


def build(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
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
    gr.HTML(FOLD, js_on_load=FOLDING, apply_default_css=False)
    with gr.Row(elem_id="sampling"):
        most = session.limits.new_tokens
        length = gr.Slider(1, most, min(60, most), step=1, label="New tokens, at most")
        sentence = gr.Checkbox(library.one_sentence, label="End with the sentence")
        sample = gr.Checkbox(False, label="Sample", info="Draw words instead of the likeliest.")
        heat = gr.Slider(0.05, 3, 1, step=0.05, label="Sampling temperature")
        top_p = gr.Slider(0.05, 1, 0.95, step=0.01, label="top-p")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0)
    output = layout.words_html(first_answer(session), elem_id="answers")

    names = ("new_tokens", "one_sentence", "sample", "sampling_temperature", "top_p", "seed")

    def on_write(request: gr.Request, *values: Any) -> Iterator[str]:
        try:
            model, wanted_lookup, (text, use, both, *how) = layout.split(server, values)
            names = (
                "new_tokens",
                "one_sentence",
                "sample",
                "sampling_temperature",
                "top_p",
                "seed",
            )
            wanted = writing_of(
                text,
                wanted_lookup() if use is True else None,
                compare=both,
                **dict(zip(names, how, strict=True)),
            )
            yield from write_html(server, model, wanted, request.session_hash)
        except Exception as error:
            yield views.notice(friendly(error), kind="error")

    inputs = [
        *controls.lookup, prompt, knn, compare, length, sentence, sample, heat, top_p, seed,
    ]  # fmt: skip

    def check(*values: Any) -> None:
        _, _, (text, _, _, *how) = layout.split(server, values)
        given = {name: one for name, one in zip(names, how, strict=True) if one is not None}
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
    # Without the memory there is the model alone, and nothing to compare it with.
    knn.change(
        inputs=[knn],
        outputs=[compare],
        js="(on) => [{ __type__: 'update', interactive: on }]",
        **layout.INSTANT,
    )
    write.click(**run)
    prompt.submit(**run)
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


def write_html(server: Server, model: Any, wanted: Writing, visitor: str | None) -> Iterator[str]:
    """The answers as HTML, while they are written."""
    session = server.session
    library = session.library(model)
    own = server.visitors.stores(visitor)
    metric = "l2"
    if wanted.lookup:
        metric = session.stores(library, wanted.lookup, own)[0].manifest.metric
    with server.visitors.running(visitor, session.limits.deadline()) as deadline:
        for answers in server.work.write(library, wanted, deadline, own):
            yield views.answers_html(answers, metric=metric, name="write")
