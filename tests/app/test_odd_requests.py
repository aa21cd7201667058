"""Requests of an answer's buttons that no page sends."""

import pytest

from knn_logits.errors import CorpusError
from knn_logits_app.drawer import read_json
from knn_logits_app.page_parts import Server
from knn_logits_app.requests import RequestError, Rewriting, content_of, friendly
from knn_logits_app.tab_generate import write_json
from knn_logits_app.visitors import Visitors

FIRST_PROMPT = "What helps against E529 is this:"
HOSTILE = [
    None, "x", {}, {"values": 3}, {"values": [None] * 14}, {"without": 3}, {"without": []},
    {"without": [7]}, {"without": ["no such document"]}, {"without": ["a"] * 99},
    {"named": "x" * 9000}, {"named": None},
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE)
def test_what_no_page_asks_for_is_one_line(session, content):
    server = Server(session, Visitors())
    values = [["manual"], 0.8, 8, 0.03, FIRST_PROMPT, True, True, 5, True, False, 1, 1, 0]
    if content:
        sound = {"values": values, "without": ["manual-086"], "named": "Error E529"}
        content = {**sound, **content} if isinstance(content, dict) else content

    def ask():
        asked = content_of(Rewriting, content)
        return list(write_json(server, asked.values, None, asked))

    with pytest.raises(Exception) as caught:  # noqa: PT011
        ask()
    assert "\n" not in friendly(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        None, {}, {"store": "manual"}, {"store": ["manual"], "document": "manual-086"},
        {"store": "your text", "document": "a"}, {"store": "manual", "document": "no"},
        {"store": "manual", "document": "manual-086", "places": 3},
        {"store": "manual", "document": "manual-086", "places": [[-1, 1]]},
        {"store": "manual", "document": "manual-086", "places": [[10**9, 1]]},
        {"store": "manual", "document": "manual-086", "places": [[0, 10**9]]},
        {"store": "manual", "document": "manual-086", "places": [[0, 1, 2]]},
        {"store": "manual", "document": "manual-086", "places": [], "turn": "x"},
    ],
)  # fmt: skip
def test_a_document_that_no_page_asks_for_is_one_line(session, content):
    server = Server(session, Visitors())
    given = {"turn": 1, "places": [], **content} if content else content
    with pytest.raises(RequestError) as caught:
        read_json(server, given, None)
    assert "\n" not in friendly(caught.value)


@pytest.mark.parametrize("name", ["notes.txt", "my notes.txt", "readme", "q3 report.final.pdf"])
def test_the_name_of_a_file_keeps_its_case(name):
    assert friendly(CorpusError(f"{name}: it holds no text")).startswith(f"{name}: ")
