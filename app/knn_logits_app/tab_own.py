"""The tab where visitors build a datastore from their own text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from knn_logits_app import layout, markup, views
from knn_logits_app.library import first_words
from knn_logits_app.own_text import Progress, build_own, documents_of
from knn_logits_app.requests import RequestError
from knn_logits_app.session import friendly
from knn_logits_app.visitors import OWN_TEXT

if TYPE_CHECKING:
    from knn_logits_app.layout import Controls, Server

SAMPLE = (
    "The lighthouse of Orrin Bay was painted blue in 1931. Its keeper, Mara Tolliver, wrote the "
    "weather into a red book each evening. The lamp of the lighthouse burns rape oil. On the first "
    "Sunday of May the keeper rows to the island and counts the seals."
)
_PHASES = {"documents": "reading", "keys": "computing keys", "index": "building the index"}
# The server deletes the files that it read. Files that were added meanwhile stay in the list.
_UNBUILT = """(now) => {
  const read = window.built.map((one) => one.path);
  const left = (now ?? []).filter((one) => !read.includes(one.path));
  return [left.length ? left : null];
}"""


def build(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
    most = server.session.limits.text_bytes
    reads = server.session.first.reading.sources
    wanted = (
        "own pairs, such as sentences and their translations. They may have up to "
        f"{most // 1000:,} KB. Type them, or upload JSON lines that each have a “source” and a "
        "“target”"
        if reads
        else f"own text, up to {most // 1000:,} KB of plain text or JSON lines"
    )
    gr.HTML(
        f'<p class="kl-prose">Make a memory of your {wanted}. You can use the memory at once. '
        "Nobody else sees it, and it is deleted when you close the page.</p>",
        apply_default_css=False,
    )
    source = layout.followed(
        server,
        controls,
        lambda one: {"visible": one.reading.sources},
        label="Sources, one on each line",
        lines=4,
        max_lines=16,
        max_length=most,
        elem_id="own-sources",
    )
    pasted = layout.followed(
        server,
        controls,
        lambda one: (
            {"label": "Their targets, such as translations", "placeholder": None}
            if one.reading.sources
            else {"label": "Paste a text", "placeholder": SAMPLE}
        ),
        lines=5,
        max_lines=16,
        max_length=most,
        elem_id="own-text",
    )
    files = gr.File(
        label=f"or upload {'.jsonl' if reads else '.txt, .md or .jsonl'} files, "
        f"{most // 1000:,} KB together",
        file_count="multiple",
        file_types=[".txt", ".md", ".rst", ".jsonl", ".json", ".csv", ".tex", ".html", ".py"],
        height=120,
        elem_id="own-files",
    )
    with gr.Row(elem_classes="kl-run"):
        start = gr.Button("Build", variant="primary", size="md", elem_id="build")
        cancel = gr.Button("Cancel", size="md", elem_id="cancel")
        sample = gr.Button("Take a sample text", size="md", visible=not reads)
        delete = gr.Button("Delete it now", size="md", elem_id="delete")
    output = layout.html_place("knnLogits.tries(element, watch);", elem_id="built")

    def choices(model: Any, visitor: str | None, chosen: Any = None) -> Any:
        known = [*server.session.library(model).stores, *server.visitors.stores(visitor)]
        return gr.CheckboxGroup(choices=known, value=chosen or known[:1])

    def on_build(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        model, _, (read, text, uploaded) = layout.split(server, values)
        unchanged = [gr.skip()] * 5
        paths = [str(one) for one in uploaded or []]
        try:
            visitor = request.session_hash
            if not visitor:
                raise RequestError("The page has no session: reload the page.")
            library = server.session.library(model)
            with server.visitors.running(visitor, server.session.limits.deadline()) as deadline:
                documents, skipped = documents_of(
                    server.session,
                    paths,
                    text,
                    pairs=library.reading.sources,
                    sources=read,
                    deadline=deadline,
                )
                address = str(request.client.host) if request.client else ""
                room = server.visitors.new_folder(visitor, address)
                steps = build_own(
                    server.work.build(library, documents, room, deadline),
                    library,
                    server.visitors,
                    visitor,
                )
                for step in steps:
                    if isinstance(step, Progress):
                        phase = _PHASES.get(step.phase, step.phase)
                        shown = views.progress_html(phase, step.done, step.total)
                        yield (shown, *unchanged)
                    else:
                        done = (
                            f"{markup.count(step.manifest.documents, 'document')}, "
                            f"{markup.count(step.manifest.entries, 'word piece')}. The datastore "
                            f"“{OWN_TEXT}” is chosen now: use it in the other tabs."
                        )
                        if skipped:
                            done += f" {skipped} parts could not be read."
                        tried = first_words(step, library.tokenizer)
                        own = layout.shown_settings(step)
                        yield (
                            views.notice(done, kind="done") + markup.tries(tried),
                            choices(model, visitor, [OWN_TEXT]),
                            # The sliders may stand where the visitor moved them for another text.
                            own.lmbda,
                            own.k,
                            own.temperature,
                            # The gate was fitted for another text.
                            False,
                        )
        except Exception as error:
            yield (views.notice(friendly(error), kind="error"), *unchanged)
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)

    def on_cancel(request: gr.Request) -> None:
        server.visitors.stop(request.session_hash)

    def on_delete(request: gr.Request, model: Any) -> tuple[Any, Any]:
        server.visitors.forget(request.session_hash)
        return views.notice("Your text is deleted."), choices(model, request.session_hash)

    start.click(
        on_build,
        [*controls.lookup, source, pasted, files],
        [output, controls.stores, *controls.knobs],
        validator=layout.validator(
            lambda *values: layout.check(server, values, *values[-3:-1], most=most)
        ),
        js="(...values) => { window.built = values.at(-1) ?? []; return values; }",
        **layout.MODEL,
    ).then(inputs=[files], outputs=[files], js=_UNBUILT, **layout.INSTANT)
    cancel.click(on_cancel, **layout.LIGHT)
    sample.click(outputs=[pasted], js=f"() => [{json.dumps(SAMPLE)}]", **layout.INSTANT)
    delete.click(on_delete, [controls.model], [output, controls.stores], **layout.LIGHT)
