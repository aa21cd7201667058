"""The tab that answers questions about the documents, and takes further ones from a visitor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr

from knn_logits import Datastore
from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.questions import Asked, ask_steps, question_of
from knn_logits_app.requests import RequestError, content_of, friendly
from knn_logits_app.visitors import YOUR_TEXT
from knn_logits_app.your_text import SUFFIXES, build_steps, read_files

# The phases of a build, in the words of a visitor.
_PHASES = {
    "tokens": "Reading word pieces",
    "keys": "Memorizing word pieces",
    "sentences": "Memorizing sentences",
    "centroids": "Building the index",
    "index": "Building the index",
}


def build(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the places of its answers."""
    library = server.session.library
    texts = [*library.examples, library.sample_passage()]
    output = page_parts.place(
        'knnLogits.chat(element, props, trigger, watch, ["ask", "read"]);',
        views.json_text({"questions": library.questions, "texts": texts}),
        kind="kl-out kl-chat",
        elem_id="chat",
    )
    example = _example(controls.first)
    attach, detach = _form(server)

    def on_ask(request: gr.Request, event: gr.EventData, *values: Any) -> Iterator[str]:
        turn: dict[str, Any] = {}
        try:
            asked = content_of(Asked, event._data)
            turn = {"turn": asked.turn}
            for frame in replies(server, values, asked, request):
                yield views.json_text({**turn, **frame})
        except Exception as error:
            yield views.json_text({**turn, "done": True, "message": friendly(error)})

    def on_attach(files: Any, request: gr.Request) -> Iterator[dict[Any, Any]]:
        paths = [str(path) for path in files or []]
        build = {"build": page_parts.arrived(request)}
        try:
            for frame in attached(server, paths, request):
                shown: dict[Any, Any] = {output: views.json_text({**build, **frame})}
                if "now" in frame:
                    boxes: list[Any] = [*library.stores, (frame["now"], YOUR_TEXT)]
                    shown[controls.stores] = gr.CheckboxGroup(choices=boxes, value=[YOUR_TEXT])
                    # A strength that was set for other documents does not hold for these.
                    shown[controls.strength] = page_parts.OWN_SETTINGS
                    shown[detach] = gr.Button(visible=True)
                yield shown
        except Exception as error:
            frame = {**build, "attached": friendly(error), "done": True}
            yield {output: views.json_text(frame)}
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)

    def on_detach(before: Any, request: gr.Request) -> tuple[Any, Any]:
        server.visitors.forget(request.session_hash)
        chosen = [name for name in library.stores if name in (before or ())] or library.chosen
        boxes = gr.CheckboxGroup(choices=list(library.stores), value=chosen)
        return boxes, gr.Button(visible=False)

    asking = output.ask(
        on_ask,
        controls.lookup,
        [output],
        validator=page_parts.stopping_first(server, "ask"),
        **page_parts.MODEL,
    )
    page_parts.at_end(asking, "knnLogits.theChat.asked();")
    # The documents that were chosen before any were attached are chosen again.
    js = "() => [knnLogits.theChat.before]"
    shown = [controls.stores, detach]
    detach.click(on_detach, controls.stores, shown, js=js, **page_parts.LIGHT)
    places = [output, controls.stores, controls.strength, detach]
    validator = page_parts.stopping_first(server, "build")
    attach.upload(on_attach, [attach], places, validator=validator, **page_parts.LONG)
    return [output, *example]


def _example(first: str) -> list[Any]:
    """Shows an answer before the first question, if the memory has a part in it."""
    frame = json.loads(first or '{"sides": {}}')
    traces = [side["trace"] for side in frame["sides"].values() if "trace" in side]
    if all(token["meaning"] == "own" for trace in traces for token in trace["tokens"]):
        return []
    value = views.json_text({**frame, "kind": "example", "asked": {}})
    js = 'knnLogits.mount(element, props, trigger, watch, ["read"]);'
    return [page_parts.place(js, value, elem_id="example")]


def _form(server: Server) -> tuple[Any, Any]:
    """Adds the form. The browser reads the question, and triggers the event "ask"."""
    with gr.Column(elem_id="chat-form"):
        with gr.Row(elem_id="chat-line"):
            attach = gr.UploadButton(
                "Attach",
                file_count="multiple",
                file_types=list(SUFFIXES),
                scale=0,
                min_width=90,
                elem_id="attach",
            )
            question = gr.Textbox(
                label="Your question; Enter sends it, Shift and Enter begin a new line",
                placeholder="Ask a question",
                show_label=False,
                container=False,
                lines=1,
                max_lines=6,
                # About what the limit in tokens allows.
                max_length=4 * server.session.limits.prompt_tokens,
                scale=1,
                min_width=120,
                elem_id="chat-question",
            )
            page_parts.enter(question, "chat-send")
            gr.Button("Send", variant="primary", scale=0, min_width=110, elem_id="chat-send")
        with gr.Row(elem_classes="kl-run"):
            page_parts.stop_button(server, "chat-stop", "ask", "build")
            gr.Button("New chat", size="md", min_width=90, elem_id="chat-new")
            detach = gr.Button("Detach all", size="md", visible=False, elem_id="chat-detach")
    return attach, detach


def replies(
    server: Server, values: Sequence[Any], asked: Asked, request: gr.Request
) -> Iterator[dict[str, Any]]:
    """Yields the frames of the reply to a question; none if it was stopped while it waited."""
    lookup, _ = page_parts.split(values)
    question = question_of(asked, lookup)
    visitor, since = request.session_hash, page_parts.arrived(request)
    private, limits = server.visitors.stores(visitor), server.session.limits
    with server.visitors.running(visitor, limits.deadline(), "ask", since) as deadline:
        if not deadline.cancelled:
            yield from ask_steps(server.session, question, deadline, private)


def attached(server: Server, paths: Sequence[str], request: gr.Request) -> Iterator[dict[str, Any]]:
    """Yields the progress of a build from files, and what the chat says at its end."""
    session, visitors, visitor = server.session, server.visitors, request.session_hash
    if not visitor:
        raise RequestError("The page has no session: reload the page.")
    deadline = session.limits.deadline(page_parts.LONG_TIMES)
    with visitors.running(visitor, deadline, "build", page_parts.arrived(request)):
        deadline.check()  # it may have been stopped while it waited
        own = visitors.by_session[visitor]
        before, old = own.files, own.store
        documents, files, unread = read_files(session, paths, deadline, before)
        room = visitors.new_folder(visitor)
        with closing(build_steps(session, documents, room, deadline, old)) as steps:  # type: ignore[type-var]
            for step in steps:
                if isinstance(step, Datastore):
                    visitors.keep(visitor, step, files)
                    names, news = ", ".join(files), _news(step, files, before)
                    yield {"now": names, "attached": news, "unread": unread, "done": True}
                else:
                    phase, done, total = step
                    of = f" of {total:,}" if total else ""
                    named = _PHASES.get(phase.split()[0], phase)
                    yield {"attached": f"{named}: {done:,}{of}", "done": False}


def _news(store: Datastore, files: Mapping[str, int], before: Mapping[str, int]) -> str:
    """Says which files are new beside those before, and how many documents there are now."""
    number = store.manifest.documents - len(store.manifest.removed)
    changed = [name for name, size in files.items() if before and size != before.get(name)]
    news = [f"{name} {'replaced' if name in before else 'added'}" for name in changed]
    return ", ".join([*news, f"{number:,} document{'s' * (number != 1)}"])
