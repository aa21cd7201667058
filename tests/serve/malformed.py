"""Draws malformed requests at random, with wrong types, sizes, encodings and ranges."""

import json
import random
import string

# The field of each path that has the text.
PATHS = {"/v1/completions": "prompt", "/v1/chat/completions": "messages"}


# The model of these tests: its name, the number of tokens that it knows, and what it reads.
MODEL, TOKENS, CONTEXT = "tiny+texts", 384, 256

_WRONG = (
    None, [], {}, "", "x", "\x00", "ü" * 300, -1, 0, 2**70, -(2**70), 1e308, True, [[]], [{}],
    {"a": {"b": [1]}}, [None], ["", ""], "NaN", 0.5, [1.5], [True], {"": ""}, "9" * 400,
)  # fmt: skip
# Values that are always wrong in a field.
_FIELDS = {
    "model": (None, [], {}, "", "gpt-4", -1, 2**70, True, [None], "\x00", "tiny+", "+texts"),
    "n": ("x", [], {}, -1, 0, 2**70, 1e308, True, 0.5, "1", 129),
    "max_tokens": ("x", [], {}, -2, 2**70, 1e308, True, 0.5, "1", 10**6 + 1),
    "temperature": ("x", [], {}, -1, 1e308, True, "1", 101),
    "top_p": ("x", [], {}, -1, 0, 1.5, 1e308, True, "1"),
    "seed": ("x", [], {}, 2**70, -(2**70), 1e308, True, 0.5, "1"),
    "stop": (True, {}, ["", "a"], [1], ["a"] * 17, "a" * 257, 7),
    "stream": ("x", [], {}, -1, 0, 1, 0.5, "true"),
    "stream_options": ("x", [1], 7, True, {"include_usage": "yes"}),
    "presence_penalty": ("x", [], {}, 3, -3, 1e308, True),
    "frequency_penalty": ("x", [], {}, 3, -3, 1e308, True),
    "logit_bias": ("x", [1], 7, {"a": 1}, {"1": "a"}, {"1": 1000}, {"-1": 1}, {"9999999": 1}),
    "knn": ("x", [1], 7, {"k": 0}, {"k": 1.5}, {"lmbda": 2}, {"lmbda": "a"}, {"stores": []},
            {"stores": ["x"]}, {"stores": "texts"}, {"exclude": {}}, {"exclude": [0]},
            {"temperature": 0}, {"temperature": -1}, {"on": "yes"}, {"other": 1}, {"k": 2**70}),
    "tool_choice": ([{}], {"a": 1}, "x", 7, True),
    "best_of": ("x", [], {}, -1, 0, 7, True),
    "top_k": ("x", [], {}, -2, 2**70, 1e308, True, 0.5, "1"),
    "min_p": ("x", [], {}, -1, 1.5, 1e308, True, "1"),
    "repetition_penalty": ("x", [], {}, -1, 0, 1e308, True, "1"),
    "typical_p": ("x", 0.5, -1, 1e308),
    "response_format": ("x", [1], 7, True, {"type": "x"}, {"type": "json_schema"}, {"type": []},
                        {"type": "json_schema", "json_schema": {"schema": "x"}},
                        {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}),
}  # fmt: skip
_PROMPTS = (None, [], {}, "", 7, -1, True, [[]], [""], [-1], [2**40], [1, "a"], [[1], "a"],
            [[1], []], {"a": 1}, [1.5], [None], ["a"] * 200)  # fmt: skip
_MESSAGES = (
    None, [], {}, "", 7, [7], ["a"], [{}], [{"role": "user"}], [{"content": "a"}],
    [{"role": "x", "content": "a"}], [{"role": "user", "content": 7}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
    [{"role": "user", "content": ["a"]}], [{"role": ["user"], "content": "a"}],
    [{"role": "user", "content": " \n"}],
    [{"role": "tool", "content": 7}], [{"role": "user", "content": "a"}] * 5000,
    [{"role": "assistant", "tool_calls": 7}],
    [{"role": "assistant", "tool_calls": [{"function": 7}]}],
)  # fmt: skip


def _values(name: str, field: str) -> tuple:
    """Returns values of a field that are wrong; "main" is the text."""
    long = "crane " * (CONTEXT + 1)
    if name == "main" and field != "prompt":
        return (*_MESSAGES, [{"role": "user", "content": long}])
    if name == "main":
        return (*_PROMPTS, long, [TOKENS], [1] * CONTEXT)
    if name == "max_tokens":
        return (*_FIELDS[name], CONTEXT)
    if name == "logit_bias":
        return (*_FIELDS[name], {str(TOKENS): 1})
    return _FIELDS[name]


def _body(picked: random.Random, path: str) -> bytes:
    field = PATHS[path]
    content = {"model": MODEL, "max_tokens": 1, field: "The crane"}
    if field == "messages":
        content[field] = [{"role": "user", "content": "The crane"}]
    name = picked.choice(["main", *_FIELDS])
    wrong = picked.choice(_values(name, field))
    content[field if name == "main" else name] = wrong
    # What is right or unknown beside it changes nothing.
    for _ in range(picked.randrange(3)):
        unknown = "".join(picked.choices(string.ascii_letters, k=12))
        content[unknown] = picked.choice(_WRONG)
    return json.dumps(content).encode()


def malformed(picked: random.Random):
    """Draws a path, headers and a body, which the server has to refuse."""
    path = picked.choice(list(PATHS))
    body = _body(picked, path)
    headers = {"content-type": "application/json"}
    kind = picked.random()
    if kind < 0.1:
        body = body[: picked.randrange(len(body) - 1)]
    elif kind < 0.2:
        place = picked.randrange(1, len(body))
        body = body[:place] + picked.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"]) + body[place:]
    elif kind < 0.25:
        body = body.decode().encode(picked.choice(["utf-16", "utf-32", "utf-16-le"]))
    elif kind < 0.3:
        body = picked.choice([b"[", b'{"a":', b"[[", b'{"":[']) * picked.randrange(1, 5000)
    elif kind < 0.35:
        body = bytes(picked.randrange(256) for _ in range(picked.randrange(200)))
    elif kind < 0.37:
        body = b'{"model":"' + b"a" * 4_000_000 + b'"}'
    elif kind < 0.42:
        headers[picked.choice(["host", "origin", "x-forwarded-host"])] = "evil.example"
    return path, headers, body
