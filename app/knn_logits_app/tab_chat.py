"""The tab that answers questions about the documents, in several turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from typing import Any

import gradio as gr

from knn_logits import Answer, PassageEffect
from knn_logits_app import page_parts, views
from knn_logits_app.library import opening
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.questions import Question, Reply, knowing, question_of
from knn_logits_app.requests import MOST_CHARACTERS, RequestError, friendly, whole


def build(server: Server, controls: Controls) -> Any:
    """Lays the tab out, connects it, and returns the places of its answers."""
    output = page_parts.place(
        'knnLogits.chat(element, props, trigger, watch, ["ask", "read"]);',
        views.json_text({"openings": _openings(server)}),
        kind="kl-out kl-chat",
        elem_id="chat",
    )
    example = page_parts.place('knnLogits.example(element, trigger, ["read"]);', elem_id="example")
    # The browser reads the question, and triggers the event "ask" of the place of answers.
    with gr.Column(elem_id="chat-form"):
        with gr.Row(elem_id="chat-line"):
            gr.Textbox(
                label="Your question; Enter sends it, Shift and Enter begin a new line",
                placeholder="Ask about the documents",
                show_label=False,
                container=False,
                lines=1,
                max_lines=6,
                max_length=MOST_CHARACTERS,
                scale=1,
                min_width=120,
                elem_id="chat-question",
            )
            gr.Button("Send", variant="primary", scale=0, min_width=110, elem_id="chat-send")
        with gr.Row(elem_classes="kl-run"):
            stop = page_parts.stop_button("Stop", "chat-stop")
            gr.Button("New chat", size="md", min_width=90, elem_id="chat-new")
            own_words = gr.Checkbox(
                False,
                label="Answer in the model’s own words",
                container=False,
                min_width=220,
                elem_id="chat-own-words",
            )

    def on_ask(request: gr.Request, event: gr.EventData, *values: Any) -> Iterator[str]:
        content = event._data if isinstance(event._data, dict) else {}
        try:
            turn = whole(content.get("turn"), "A turn", 0, 2**31)
        except RequestError as error:
            yield views.message(friendly(error))
            return
        try:
            yield from replies(server, values, content, turn, request)
        except Exception as error:
            yield views.json_text({"turn": turn, "done": True, "message": friendly(error)})

    asking = output.ask(
        on_ask,
        [*controls.lookup, own_words],
        [output],
        # A new question replaces the one that is being answered, before it waits in the queue.
        validator=page_parts.validator(lambda *_: None, then=page_parts.stopping(server, "ask")),
        trigger_mode="multiple",
        **page_parts.MODEL,
    )
    # In gradio a refused request triggers the second of these alone, and every other one the first.
    for ended in (asking.then, asking.failure):
        ended(js="() => { knnLogits.asked(); }", **page_parts.INSTANT)
    stop.click(page_parts.stopping(server, "ask"), **page_parts.LIGHT)
    return [output, example]


def replies(
    server: Server, values: Sequence[Any], content: dict[str, Any], turn: int, request: gr.Request
) -> Iterator[str]:
    """Yields the reply to a question as it grows, as JSON for the browser."""
    session = server.session
    lookup, (own_words,) = page_parts.split(server, values)
    question = question_of(content.get("question"), lookup(), content.get("history"), own_words)
    shown = {"turn": turn, "stores": list(question.lookup.stores)}
    visitor, since = request.session_hash, page_parts.arrived(request)
    private = server.visitors.stores(visitor)
    with server.visitors.running(visitor, session.limits.deadline(), "ask", since) as deadline:
        if deadline.cancelled:  # it was stopped or replaced while it waited, and the page says so
            return
        reply, steps = Reply(), server.work.steps("ask", private, deadline, question)
        with closing(steps):  # type: ignore[type-var]
            for reply in steps:
                frame = packed(reply, question)
                if reply.answer is not None and not reply.answer.answered:
                    names = knowing(session, question.text, question.lookup, private)
                    frame["elsewhere"] = names
                yield views.json_text({**shown, **frame})
        if reply.answer is None and reply.stopped is None:
            # A Space drops the rest of what was stopped.
            stopped = packed(replace(reply, stopped="stopped"), question)
            yield views.json_text({**shown, **stopped})


def packed(reply: Reply, question: Question) -> dict[str, Any]:
    """Packs a reply for `assets/chat.js`."""
    answer = reply.answer
    shown: dict[str, Any] = {
        "done": answer is not None or reply.stopped is not None,
        "stopped": reply.stopped,
        "full": reply.full,
        "alone": reply.alone,
        "ownWords": question.own_words,
    }
    if answer is None:
        return {**shown, "text": reply.written, "parts": [[reply.written, None]], "passages": []}
    return {
        **shown,
        "text": answer.text,
        "parts": _parts(answer),
        "short": answer.span,
        "answered": answer.answered,
        "near": answer.near,
        "quoted": answer.quoted,
        "note": "" if answer.note == answer.text else answer.note,
        "seconds": round(answer.seconds, 2),
        "passages": [_passage(row, answer) for row in _shown(answer)],
    }


def _shown(answer: Answer) -> list[PassageEffect]:
    """The passages that were read, or the nearest where no document says the answer."""
    return [row for row in answer.passages if answer.near and (row.read or not answer.answered)]


def _parts(answer: Answer) -> list[list[Any]]:
    """An answer's text in parts, each with the number of the passage that has its words."""
    if answer.quoted or not answer.answered:
        return [[answer.text, None]]
    parts = [
        ["".join(token.token for token in group), source]
        for source, group in groupby(answer.tokens, lambda token: token.source)
    ]
    return [[text, source] for text, source in parts if text]


def _passage(row: PassageEffect, answer: Answer) -> dict[str, Any]:
    quoted = (answer.sentence or "") if row is answer.passages[0] else ""
    # A passage without a page or line has its heading alone as its place.
    heading = f", “{row.place}”" if row.place and row.place not in row.title else ""
    return {
        "store": row.store,
        "document": row.document,
        "title": f"{row.title}{heading}",
        "uri": row.uri,
        "effect": answer.effect_line(row),
        "span": row.span,
        "text": marked(row, quoted),
    }


def marked(row: PassageEffect, sentence: str) -> list[list[Any]]:
    """A passage's text in pieces, of which a sentence is marked."""
    first, last = row.find(sentence) or (0, 0)
    pieces = [[row.text[:first], False], [row.text[first:last], True], [row.text[last:], False]]
    return [piece for piece in pieces if piece[0]]


def _openings(server: Server) -> dict[str, Any]:
    """What each datastore offers to a chat without a turn."""
    library = server.session.library
    return {title: opening(library, store) for title, store in library.stores.items()}
