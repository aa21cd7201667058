"""A conversation in a browser with a model that people use."""

import pytest

from app.chatting import Chat
from app.conftest import expect, serving
from knn_logits import build_datastore, read_corpus
from knn_logits_app.library import Library

TEXT = """# The Brindle cider press

The Brindle is a tabletop cider press for apples, pears and quinces.

## Noise

The mill of the Brindle reaches 74 decibels at full speed, about as loud as a vacuum cleaner.

## Weight

The Brindle weighs 38 kilograms when the basket is empty. Two people should carry it.

## Care

Wash the basket of the Brindle in warm water with one spoon of baking soda.
"""


@pytest.fixture(scope="module")
def address(instruct, tmp_path_factory):
    """The page of SmolLM2-135M-Instruct with a handbook."""
    model, tokenizer = instruct
    place = tmp_path_factory.mktemp("h")
    (place / "handbook.md").write_text(TEXT)
    handbook, folder = read_corpus([str(place / "handbook.md")]), place / "handbook"
    store = build_datastore(model, tokenizer, handbook, folder, calibrate=False)
    with serving(Library.of("SmolLM2", model, tokenizer, [store])) as (url, _):
        yield url


def test_three_turns_a_question_without_an_answer_and_a_general_one(visit, address):
    chat = Chat(visit(url=address))
    reply = chat.ask("How loud is the Brindle?")
    expect(reply.locator(".kl-quoted")).to_contain_text("74 decibels")
    expect(reply.locator("summary")).to_contain_text("Noise")
    reply = chat.ask("And how do I wash its basket in water?")
    expect(reply.locator(".kl-quoted")).to_contain_text("one spoon of baking soda")
    reply.locator("summary").click()
    expect(reply.locator("details mark")).to_contain_text("one spoon of baking soda")
    reply = chat.ask("Which composer wrote a symphony about the Brindle?")
    expect(reply.locator(".kl-alone")).to_contain_text("No passage answers this.")
    reply = chat.ask("What is the capital of France?")
    expect(reply.locator(".kl-alone")).to_contain_text("No passage answers this.")
