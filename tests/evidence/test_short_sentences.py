"""Sentences of few words, which the search may miss."""

import pytest

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
        ("Showers are not free.", {}, ""),
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
