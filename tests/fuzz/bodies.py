"""The checks of request bodies: those of the server's interfaces, and of the page."""

from __future__ import annotations

import json

import above  # noqa: F401 (puts the tests' folders on the path)
from running import Target

from knn_logits.errors import KNNLogitsError


def _body(**fields):
    return json.dumps({"model": "tiny", "max_tokens": 1, **fields}).encode()


def _served(exact):
    import torch
    from conftest import make_gpt2
    from stores import tokenizer

    from knn_logits import Datastore
    from knn_logits_serve import Served

    torch.set_num_threads(1)
    return Served(
        "tiny", make_gpt2(layers=1, width=32), tokenizer(), {"texts": Datastore(exact)}, asks=True
    )


def answers(route, exact):
    """Opens the check of a request's body."""

    def open_():
        from knn_logits_serve.routes import Routes

        routes = Routes(_served(exact), None)

        def read(data):
            getattr(routes, route)(data)
            return "accepted"

        return read

    return open_


def refusal(check, *errors):
    """Why a check refuses something; None if it does not."""
    try:
        check()
    except errors as error:
        return str(error)
    return None


def _page():
    from knn_logits_app.guard import Refused, check_body
    from knn_logits_app.questions import Asked
    from knn_logits_app.requests import SETTINGS, Rewriting, content_of, lookup_of, writing_of

    def read(data):
        reasons = [refusal(lambda: check_body(data, "/uploads"), Refused)]
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return "refused"
        values = content.get("data") if isinstance(content, dict) else None
        values = (values if isinstance(values, list) else [content]) + [None] * 6
        given = values[1] if isinstance(values[1], dict) else {}
        settings = {name: given.get(name) for name in SETTINGS}
        for check in (
            lambda: lookup_of(values[0], settings),
            lambda: content_of(Asked, {"turn": 1, "question": values[2], "history": values[3]}),
            lambda: content_of(Rewriting, values[5]),
            lambda: writing_of(values[2], None, seed=values[4], top_p=values[0]),
        ):
            reasons.append(refusal(check, KNNLogitsError))
        assert not any(reason and "\n" in reason for reason in reasons), reasons
        return "accepted" if None in reasons[1:] else "refused"

    return read


def requests(exact):
    """A target for each body that the server and the page read, over a datastore."""
    from knn_logits_serve.refusals import Refusal

    completion = [
        _body(prompt="The crane", stop=["a"], logit_bias={"1": 1}, n=2, seed=3, top_p=0.5),
        _body(prompt=[1, 2, 3], knn={"k": 4, "lmbda": 0.5}, echo=True),
    ]
    said = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "The crane"}]}]
    chat = [
        _body(messages=[*said, {"role": "user", "content": "And?"}], ask=True, stream=True),
        _body(messages=parts, knn=False, response_format={"type": "text"}, tools=[]),
    ]
    task = "### Task:\n<chat_history>\nUSER: Why the crane?\n</chat_history>\n"
    tasks = [_body(messages=[{"role": "user", "content": task}]), *chat]
    rewriting = {"values": [1, 2, 3], "without": ["a"], "named": "b"}
    asked = {
        "data": [["texts"], {"k": 4, "lmbda": 0.5}, "Why?", said, True, rewriting],
        "session_hash": "abc",
        "fn_index": 1,
        "trigger_id": 2,
    }
    file = {"data": [{"path": f"/uploads/{'0' * 64}/a.txt", "meta": {"_type": "gradio.FileData"}}]}
    bodies = {
        "completion": completion,
        "conversation": chat,
        "open_webui": tasks,
    }
    return [
        *(
            Target(f"serve-{route}", seeds, answers(route, exact), "json", (Refusal,))
            for route, seeds in bodies.items()
        ),
        Target("page", [json.dumps(one).encode() for one in (asked, file)], _page, "json"),
    ]
