"""OpenAI's interface of responses, by OpenAI's own client."""

import json

import pytest

from serve.conftest import PROMPT

MODEL = "tiny+texts"
STRONG = {"knn": {"lmbda": 0.95, "k": 4, "temperature": 0.05}}
EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def respond(client, given=PROMPT, **settings):
    settings = {"max_output_tokens": 12, "temperature": 0, **settings}
    return client.responses.create(model=MODEL, input=given, **settings)


def test_a_response_is_the_answer_of_a_chat(client):
    found = respond(client, extra_body=STRONG)
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=12,
        temperature=0,
        extra_body=STRONG,
    )
    assert found.output_text == chat.choices[0].message.content
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.usage.total_tokens == chat.usage.total_tokens
    below = client.with_options(base_url=client.base_url.join("/open-webui/v1"))
    assert respond(below, extra_body=STRONG).output_text == found.output_text
    (message,) = found.output
    assert message.model_extra["sources"] == chat.choices[0].model_extra["sources"]
    spans = message.model_extra["sources"]["spans"]
    assert [cited.filename for cited in message.content[0].annotations] == [
        span["document"]["title"] or span["document"]["document"] for span in spans
    ]
    assert spans


def test_a_stream_has_openais_events_and_the_same_answer(client):
    whole = respond(client, extra_body=STRONG)
    with respond(client, stream=True, extra_body=STRONG) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    others = ("response.output_text.delta", "response.output_text.annotation.added")
    assert [kind for kind in kinds if kind not in others] == [*EVENTS, "response.incomplete"]
    text = "".join(event.delta for event in events if event.type == others[0])
    assert text == whole.output_text == events[-1].response.output_text
    cited = [event.annotation.model_dump() for event in events if event.type == others[1]]
    assert cited == [part.model_dump() for part in whole.output[0].content[0].annotations]
    assert cited
    assert events[-1].response.usage == whole.usage
    assert events[0].response.output == []


def test_the_clients_own_stream_reads_the_events(client):
    ended = {"max_output_tokens": 12, "extra_body": {"stop": "e"}}
    with client.responses.stream(model=MODEL, input=PROMPT, **ended) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == respond(client, **ended).output_text
    assert final.status == "completed"


def test_each_event_has_its_name(http):
    body = {"model": MODEL, "input": PROMPT, "max_output_tokens": 2, "stream": True}
    lines = http.post("/v1/responses", json=body).text.strip().split("\n\n")
    for line in lines:
        name, _, data = line.partition("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


def test_instructions_and_items_are_the_messages_of_a_chat(client):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "The crane"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": None},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": " lifts.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "There."},
    ]  # fmt: skip
    found = respond(client, items, instructions="Short.")
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "Short.\n\nThe crane lifts. look({})\n\nlook: There."}
        ],
        max_tokens=12,
        temperature=0,
    )
    assert found.output_text == chat.choices[0].message.content


def test_logprobs_are_those_of_a_chat(client):
    found = respond(client, include=["message.output_text.logprobs"], top_logprobs=2)
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=12,
        logprobs=True,
        top_logprobs=2,
    )
    (part,) = found.output[0].content
    expected = [token.logprob for token in chat.choices[0].logprobs.content]
    assert [token.logprob for token in part.logprobs] == expected
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"input": []}, "the input is empty"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "'input_image'"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "'item_reference'"),
        ({"input": [{"content": "a"}]}, "no role"),
        ({"input": None}, "input"),
        ({"previous_response_id": "resp_1"}, "keeps no responses"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "needs a schema"),
        ({"max_output_tokens": 0}, "ask for a token"),
        ({"n": 2}, "one answer"),
        ({"model": "gpt-4"}, "no model"),
    ],
    ids=str,
)
def test_what_a_response_cannot_have_is_refused(http, changed, line):
    body = {"model": MODEL, "input": "a", **changed}
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code in (400, 404)
    assert line in answer.json()["error"]["message"]
