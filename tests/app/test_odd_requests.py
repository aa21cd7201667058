"""Requests of an answer's buttons that no page sends."""

import pytest

from knn_logits.errors import CorpusError
from knn_logits_app.drawer import read_json
from knn_logits_app.page_parts import Server
from knn_logits_app.requests import RequestError, Rewriting, content_of, friendly
from knn_logits_app.tab_generate import write_json
from knn_logits_app.visitors import Visitors

FIRST_PROMPT = "What helps against E529 is this:"
# The page has sent these values; what a test changes is no page's.
VALUES = [["manual"], "fixed", 0.8, 8, 0.03, FIRST_PROMPT, True, 5, True, 0, 0]
ASKED = {"values": VALUES, "without": ["manual-086"], "named": "Error E529"}
READ = {"turn": 1, "places": [], "store": "manual", "document": "manual-086"}


@pytest.mark.parametrize(
    "changed",
    [
        {"values": 3}, {"values": [None] * 11}, {"without": []}, {"without": [7]},
        {"without": ["no such document"]}, {"without": ["a"] * 99}, {"named": "x" * 9000},
    ],
)  # fmt: skip
def test_what_no_page_asks_for_is_one_line(session, changed):
    def ask():
        asked = content_of(Rewriting, ASKED | changed)
        return list(write_json(Server(session, Visitors()), asked.values, None, asked))

    with pytest.raises(Exception) as caught:  # noqa: PT011
        ask()
    assert "\n" not in friendly(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"store": ["manual"]}, {"store": "your text"}, {"document": "no"}, {"places": 3},
        {"places": [[-1, 1]]}, {"places": [[10**9, 1]]}, {"places": [[0, 10**9]]},
        {"places": [[0, 1, 2]]}, {"passages": [[0, 10**9]]}, {"turn": "x"},
    ],
)  # fmt: skip
def test_a_document_that_no_page_asks_for_is_one_line(session, changed):
    with pytest.raises(RequestError) as caught:
        read_json(Server(session, Visitors()), READ | changed, None)
    assert "\n" not in friendly(caught.value)


def test_the_name_of_a_file_keeps_its_case():
    assert friendly(CorpusError("my notes.txt: it holds no text")).startswith("my notes.txt: ")
