"""Words and the documents behind them: what a trace's tokens owe to whom."""

from dataclasses import replace

import pytest

from knn_logits import Trace
from knn_logits.evidence.records import (
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
)
from knn_logits.evidence.sources import main_sources, words_of
from knn_logits.evidence.trace import to_html


def token(text, influence=0.0, document=None):
    neighbors = []
    if document is not None:
        neighbors = [NeighborTrace("", text, "", document, None, None, "s", 0, 1.0, 0.0, influence)]
    return TokenTrace(text, 0, 0.5, 0.5, 0.5, 0.5, influence, neighbors)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["har", "bour", " cr", "ane", "\n", "E"], ["harbour", " crane", "\n", "E"]),
        # Signs behind a word are a word of their own.
        (["Vin", "une", ".", '"', " 3", ".", "5", "%", ")"], ["Vinune", '."', " 3.5%", ")"]),
        ([")", "\n", "."], [")", "\n", "."]),
        # A sign with a line break ends a word.
        ([" left", ".\n", "The", " winch"], [" left", ".\n", "The", " winch"]),
    ],
)
def test_tokens_are_grouped_into_words(tokens, expected):
    words = words_of([token(one) for one in tokens])
    assert ["".join(one.token for one in word) for word in words] == expected


@pytest.mark.parametrize("stores", [("s",), ("s", "t")])
def test_the_datastore_is_named_where_several_are_open(stores, capsys):
    """All documents may be of one of them."""
    trace = Trace([SequenceTrace("", [shared(" winch", a=0.9)])], stores)
    trace.show()
    several = len(stores) > 1
    assert ("90% by a (s)" in capsys.readouterr().out) is several
    assert ("90% a (s)" in to_html(trace)) is several


def test_a_sentence_that_ends_in_the_answer_only_keeps_its_source():
    # The passage goes on where the answer's sentence ends, so the full stop is the model's own.
    tokens = [shared(" Vin", a=0.9), shared("une", a=0.9), shared(".", a=0.005)]
    end = replace(token("<|endoftext|>"), special=True)
    found = SequenceTrace("", [*tokens, end])
    assert [(one.words, one.document.document) for one in main_sources(found, 5)] == [
        (" Vinune", "a")
    ]
    # Neither the full stop nor the end of the text is a word, so they do not lower its share.
    assert found.documents[0].share == pytest.approx(0.9)
    assert "endoftext" not in to_html(Trace([found]))


def test_the_sources_of_a_word_are_those_of_its_pieces():
    tokens = [shared("har", a=0.9), shared("bour", a=0.2, b=0.6), shared(" x", c=0.1)]
    sources = main_sources(SequenceTrace("", tokens), 1)
    assert [(one.words, one.document.document) for one in sources] == [("harbour", "a")]
    assert sources[0].document.share == pytest.approx(0.55)
    assert sources[0].total == pytest.approx(0.8)


def test_a_piece_that_many_documents_have_does_not_hide_the_source_of_a_number():
    others = {f"d{number}": 0.1 for number in range(9)}
    pieces = [shared(" 4", a=0.83), shared("0", a=0.9), shared("44", a=0.005, **others)]
    (source,) = main_sources(SequenceTrace("", pieces), 1)
    assert (source.words, source.document.document) == (" 4044", "a")
    assert source.total == pytest.approx(0.83)
    assert source.document.share == pytest.approx(1.735 / 3)
    # A document that gave the beginning only is none.
    tokens = [shared(" K-", a=0.9), shared("1111", b=0.9)]
    assert main_sources(SequenceTrace("", tokens), 5) == []


def test_a_passage_that_says_another_word_is_not_shown():
    first = shared(" K-", a=0.9)
    first.neighbors.append(
        NeighborTrace("", " K-", "8404 is", "a", None, None, "s", 3, 0.5, 0.0, 0.9)
    )
    (source,) = main_sources(SequenceTrace("", [first, shared("1111", a=0.9)]), 5)
    assert (source.words, source.document.document, source.neighbor) == (" K-1111", "a", None)


def shared(text, **shares):
    """A token that documents have shares in."""
    documents = [DocumentShare("s", name, None, None, share) for name, share in shares.items()]
    total = sum(shares.values())
    return TokenTrace(text, 0, 0.5, 0.1, 0.9, 0.5, total, documents=documents)


def test_words_in_a_row_have_shares_of_one_kind():
    """The document's share in several words is never above that of all documents."""
    words = []
    for place, (text, total) in enumerate(((" one", 0.9), (" two", 0.5), (" three", 0.8))):
        near = NeighborTrace("", text, "", "a", None, None, "s", place, 1.0, 0.0, total)
        words.append(replace(shared(text, a=total), neighbors=[near]))
    (source,) = main_sources(SequenceTrace("", words), 5)
    assert source.words == " one two three"
    assert source.total == pytest.approx((0.9 + 0.5 + 0.8) / 3)
    assert source.document.share == pytest.approx(source.total)


def test_a_short_word_is_a_source_within_others_only():
    tokens = [shared(" (the", a=0.9), shared(" winch", b=0.9), shared(" for", c=0.9)]
    sequence = SequenceTrace("", tokens)
    assert [source.words for source in main_sources(sequence, 5)] == [" winch"]
    words = []
    for place, text in enumerate((" for", " one")):
        near = NeighborTrace("", text, "", "a", None, None, "s", place, 1.0, 0.0, 0.9)
        words.append(replace(shared(text, a=0.9), neighbors=[near]))
    (source,) = main_sources(replace(sequence, tokens=words), 5)
    assert source.words == " for one"


@pytest.mark.parametrize(("share", "alone"), [(0.0, True), (0.04, True), (0.06, False)])
def test_a_text_in_which_the_memory_has_no_part_has_nothing_near(share, alone, capsys):
    sequence = SequenceTrace("", [shared(" winch", a=share), shared(" cover", a=0.0)])
    assert sequence.alone is alone
    Trace([sequence]).show()
    assert ("nothing near: no passage has a part" in capsys.readouterr().out) is alone
    assert ("nothing near" in to_html(Trace([sequence]))) is alone


def test_what_the_memory_has_to_do_with_a_word():
    brought = replace(shared(" x", a=0.8), by_model=Rival(" y", 0.3))
    assert brought.meaning == "changed"
    assert shared(" x", a=0.8).meaning == "agreed"
    assert shared(" x", a=0.01).meaning == "own"
    rival = Rival(" y", 0.99, DocumentShare("s", "b", "The b", None, 0.99), entry=3)
    against = TokenTrace(" x", 0, 4e-7, 8e-7, 0.0, 0.5, 0.0, by_memory=rival)
    assert against.meaning == "contradicted"


def voted(text, *votes):
    """A token with a vote a datastore, all of them from documents of the same id."""
    neighbors = [
        NeighborTrace("", text, "", "0", None, None, store, 0, share, 0.0, share)
        for store, share in votes
    ]
    documents = [DocumentShare(store, "0", None, None, share) for store, share in votes]
    total = sum(share for _, share in votes)
    return TokenTrace(text, 0, 0.5, 0.1, 0.5, 0.5, total, neighbors, documents=documents)


def test_documents_of_two_datastores_with_one_id_are_two(capsys):
    trace = Trace([SequenceTrace("", [voted("word", ("a", 0.37), ("b", 0.63))])])
    (source,) = main_sources(trace[0], 5)
    assert source.document.share == pytest.approx(0.63)
    assert source.document.store == "b"
    assert "63% by" in to_html(trace)
    trace.show()
    assert "100% by the neighbors, 63% by 0" in capsys.readouterr().out


def test_words_from_two_datastores_are_no_passage():
    one, other = voted("harp", ("a", 0.9)), voted(" harp", ("b", 0.9))
    one.neighbors[0] = replace(one.neighbors[0], after=" harp")
    assert len(main_sources(SequenceTrace("", [one, other]), 5)) == 2
    # What has no colour has no source.
    assert not main_sources(SequenceTrace("", [replace(one, elsewhere=True)]), 5)
