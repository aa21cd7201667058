"""Sentences of few words, which the search may miss."""

import pytest

from knn_logits.evidence import quotation
from knn_logits.store import spans

SHED = (
    "A shed stands by the harbour, and its key hangs in the kitchen. Showers are free. The crane "
    "is old. A dog costs three crowns for each night."
)


@pytest.mark.parametrize(
    ("text", "settings", "same"),
    [
        ("Showers are free.", {}, "Showers are free"),
        ("It rained. showers are free!", {}, "showers are free"),
        ("Nobody was there. The crane is old", {}, "The crane is old"),
        ("Showers are free.", {"exclude": ["shed"]}, ""),
        # Some of the words, or others.
        ("Showers are.", {}, ""),
        ("A lamp costs three.", {}, ""),
    ],
)
def test_a_short_sentence_is_recognized_where_a_document_has_it(
    build, explain, tmp_path, text, settings, same
):
    from conftest import TEXTS

    import knn_logits

    documents = [*map(knn_logits.Document, TEXTS, "abcdefgh"), knn_logits.Document(SHED, "shed")]
    store = build(documents, tmp_path / "s", index="exact")
    trace = explain(store, text, k=1, lmbda=0.3, temperature=1.0, **settings)[0]
    said = "".join(token.token for token in trace.tokens if token.verbatim)
    # Nothing predicts the first token, which has no trace.
    assert same.endswith(said.strip(" .!"))
    assert bool(said.strip(" .!")) == bool(same)
    assert not [token for token in trace.tokens if token.by_memory]


POOL = (
    "A ticket costs 4.80 crowns for adults. The pool is run by Mrs Hanna Bauer. Her deputy is Mr "
    "Tomas Wolf. Dogs may not enter the water. Showers are free. It is not a lake."
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A ticket costs 4.80 crowns for children.", "children: adults"),
        ("A ticket costs 4.90 crowns for adults.", "4.90: 4.80"),
        ("A card costs 4.80 crowns for adults.", "card: ticket"),
        ("The pool is run by Mrs Hanna Becker.", "Becker: Bauer"),
        ("The pool is run by Mr Peter Lang.", "Mr Peter Lang: Mrs Hanna Bauer"),
        ("Her deputy is Mr Jonas Wolf.", "Jonas: Tomas"),
        ("Dogs may enter the water.", "enter: not enter"),
        ("Showers are not free.", "not free: free"),
        ("Cats may not enter the water.", "Cats: Dogs"),
        # Fewer words are the same, or none of the longer ones.
        ("A boat costs 3.50 crowns for sailors.", ""),
        ("The keeper is Mr Jonas Wolf.", ""),
        ("Cows may drink the water.", ""),
        ("It is not a sea.", ""),
    ],
)
def test_a_short_sentence_is_compared_with_the_nearest(build, explain, tmp_path, text, found):
    """The search finds one neighbor of each word only."""
    from conftest import TEXTS

    store = build([*TEXTS, POOL], tmp_path / "s", index="exact")
    trace = explain(store, f"It rained. {text}", k=1, lmbda=0.3, temperature=1.0)[0]
    rivals = [token.by_memory for token in trace.tokens if token.by_memory]
    words = "".join(one.token for one in trace.tokens if one.by_memory)
    said = [f"{words}:{rival.token}" for rival in rivals[:1]]
    # White space in a token of its own is no word.
    assert "".join(said).replace(" ", "") == found.replace(" ", "")
    assert len({rival.entry for rival in rivals}) == len(said)
    assert bool(found) == any(token.verbatim for token in trace.tokens)


def test_the_documents_are_read_once_and_only_where_a_sentence_is_not_found(
    build, explain, tmp_path, monkeypatch
):
    reads = []
    real = spans.pairs_of
    monkeypatch.setattr(quotation, "pairs_of", lambda *given: reads.append(1) or real(*given))
    store = build([POOL], tmp_path / "s", index="exact")
    explain(store, POOL, k=64, lmbda=0.3, temperature=1000.0)
    assert not reads
    explain(store, "My cat sleeps. A dog barks. Nobody comes.", k=64, lmbda=0.3)
    assert len(reads) == 1
