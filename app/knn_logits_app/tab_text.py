"""The tab where visitors build a datastore from a text of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from knn_logits import Datastore
from knn_logits_app import page_parts, views
from knn_logits_app.library import Library, first_words, opening
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.requests import SETTINGS, RequestError, friendly
from knn_logits_app.visitors import YOUR_TEXT
from knn_logits_app.your_text import SUFFIXES, Progress, build_for, documents_of

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
    pairs = server.session.library.reader.sources
    gr.HTML(_introduction(pairs, most), apply_default_css=False)
    source, pasted, files = _inputs(pairs, most)
    with gr.Row(elem_classes="kl-run"):
        start = gr.Button("Build", variant="primary", size="md", elem_id="build")
        cancel = page_parts.stop_button("Cancel", "cancel")
        sample = gr.Button("Take a sample text", size="md", visible=not pairs)
        delete = gr.Button("Delete it now", size="md", interactive=False, elem_id="delete")
    output = page_parts.place(
        "knnLogits.tries(element, watch);", content="${value}", elem_id="built"
    )

    def on_build(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        paths = [str(path) for path in values[-1] or []]
        try:
            yield from _built(server, values, paths, request)
        except Exception as error:
            yield _only(views.notice(friendly(error), kind="error"))
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)

    def on_delete(request: gr.Request) -> tuple[Any, ...]:
        server.visitors.forget(request.session_hash)
        notice = views.notice("Your text is deleted.")
        return notice, _able(False), _choices(server, None)

    start.click(
        on_build,
        [*controls.lookup, source, pasted, files],
        [output, delete, controls.stores, *controls.settings.values()],
        validator=page_parts.validator(
            lambda *values: page_parts.check(values, *values[-3:-1], most=most)
        ),
        js="(...values) => { window.built = values.at(-1) ?? []; return values; }",
        **page_parts.MODEL,
    ).then(inputs=[files], outputs=[files], js=_UNBUILT, **page_parts.INSTANT)
    cancel.click(page_parts.stopping(server, "build"), **page_parts.LIGHT)
    sample.click(outputs=[pasted], js=f"() => [{json.dumps(SAMPLE)}]", **page_parts.INSTANT)
    delete.click(on_delete, None, [output, delete, controls.stores], **page_parts.LIGHT)


def _introduction(pairs: bool, most: int) -> str:
    size = f"{most // 1000:,} KB"
    content = (
        f"own pairs, such as sentences and their translations. They may have up to {size}. Type "
        "them, or upload JSON lines that each have a “source” and a “target”"
        if pairs
        else f"own text, up to {size} of text, documents or JSON lines"
    )
    return (
        f'<p class="kl-prose">Make a memory of your {content}. You can use the memory at once. '
        "Nobody else sees it, and it is deleted when you close the page.</p>"
    )


def _inputs(pairs: bool, most: int) -> tuple[Any, Any, Any]:
    source = gr.Textbox(
        visible=pairs,
        label="Sources, one per line",
        lines=4,
        max_lines=16,
        max_length=most,
        elem_id="own-sources",
    )
    pasted = gr.Textbox(
        label="Their targets, such as translations" if pairs else "Paste a text",
        placeholder=None if pairs else SAMPLE,
        lines=5,
        max_lines=16,
        max_length=most,
        elem_id="own-text",
    )
    files = gr.File(
        label=f"or upload {'.jsonl' if pairs else '.txt, .md, .pdf, .docx or .jsonl'} files, "
        f"{most // 1000:,} KB together",
        file_count="multiple",
        file_types=list(SUFFIXES),
        height=120,
        elem_id="own-files",
    )
    return source, pasted, files


def _built(
    server: Server, values: Any, paths: list[str], request: gr.Request
) -> Iterator[tuple[Any, ...]]:
    """Yields the progress of a build and its end, as values of the outputs."""
    _, (sources, text, _) = page_parts.split(server, values)
    visitors, visitor = server.visitors, request.session_hash
    if not visitor:
        raise RequestError("The page has no session: reload the page.")
    library, deadline = server.session.library, server.session.limits.deadline()
    with visitors.running(visitor, deadline, "build", page_parts.arrived(request)):
        deadline.check()  # it may have been stopped while it waited
        documents, skipped = documents_of(
            server.session, paths, text, pairs=library.reader.sources, sources=sources,
            deadline=deadline,
        )  # fmt: skip
        address = str(request.client.host) if request.client else ""
        room = visitors.new_folder(visitor, address)
        steps = server.work.steps("build", {}, deadline, documents, room)
        for step in build_for(steps, library, visitors, visitor):
            if isinstance(step, Progress):
                phase = _PHASES.get(step.phase, step.phase)
                yield _only(views.progress_html(phase, step.done, step.total))
            else:
                # The sliders may stand where the visitor moved them for another text.
                sliders = page_parts.values_of(step).values()
                choices = _choices(server, visitor, [YOUR_TEXT])
                yield _result(step, library, skipped), _able(True), choices, *sliders


def _only(output: str) -> tuple[Any, ...]:
    """The values of the outputs when only the first changes."""
    return output, *[gr.skip()] * (len(SETTINGS) + 2)


def _able(yes: bool) -> Any:
    return gr.Button(interactive=yes)


def _choices(server: Server, visitor: str | None, chosen: Any = None) -> Any:
    names = [*server.session.library.stores, *server.visitors.stores(visitor)]
    return gr.CheckboxGroup(choices=names, value=chosen or names[:1])


def _result(store: Datastore, library: Library, skipped: int) -> str:
    counts = {"document": store.manifest.documents, "word piece": store.manifest.entries}
    sizes = ", ".join(f"{count:,} {of}{'s' * (count != 1)}" for of, count in counts.items())
    line = f"{sizes}. The datastore “{YOUR_TEXT}” is chosen now: use it in the other tabs."
    if skipped:
        line += f" {skipped} parts could not be read."
    content = opening(library, store) if library.chats else None
    prompts = views.prompts_html(first_words(store, library.tokenizer), content)
    return views.notice(line, kind="done") + prompts
