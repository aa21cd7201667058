"""`Datastore.trace` against a plain search of all spans, and as a command."""

import numpy as np
from conftest import TEXTS
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import Datastore, remove_documents
from knn_logits.store.spans import Quotes
from knn_logits.store.suffixes import suffix_order


class Rows:
    """A table of documents of small numbers."""

    def __init__(self, rows):
        self.length = np.array([len(row) for row in rows])
        self.first = np.cumsum(self.length) - self.length

    def __getitem__(self, number):
        return Row(number, int(self.first[number]))


class Row:
    def __init__(self, number, first):
        self.number, self.first = number, first


class Rowed:
    """As much of a datastore as `Quotes` reads."""

    def __init__(self, rows, removed):
        self.tokens = np.array([token for row in rows for token in row], np.int32)
        self.documents, self.folder = Rows(rows), "rows"
        self.suffixes = suffix_order(self.tokens, self.documents.first)
        self.manifest = type("Manifest", (), {"removed": removed, "learned": None})


ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=6)


@given(ROWS, st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 4), st.data())
def test_spans_are_those_of_a_plain_search(rows, text, least, data):
    removed = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
    left = {number: row for number, row in enumerate(rows) if number not in removed}

    def found(ids):
        return [
            (number, start)
            for number, row in left.items()
            for start in range(len(row))
            if row[start : start + len(ids)] == ids
        ]

    quotes = Quotes(Rowed(rows, removed))
    held = [
        (first, end)
        for first in range(len(text))
        for end in range(first + 1, len(text) + 1)
        if found(text[first:end])
    ]
    whole = [
        (first, end)
        for first, end in held
        if end - first >= least
        and not any(a <= first and end <= b and (a, b) != (first, end) for a, b in held)
    ]
    assert list(quotes.longest(text, least)) == whole
    for first, end in whole:
        count, places = quotes.occurrences(text[first:end], 2)
        assert count == len(found(text[first:end]))
        wanted = list(dict(reversed(found(text[first:end]))).items())
        assert [(one.document.number, one.token) for one in places] == sorted(wanted)[:2]


def test_a_text_is_traced(store, tokenizer):
    text = (
        "A sign: open the winch cover and clear the cable drum by hand. The crane needs oil of "
        "grade nine!"
    )
    spans = store.trace(text, tokenizer)
    assert [span.text.strip() for span in spans] == [
        "open the winch cover and clear the cable drum by hand.",
        ". The crane needs oil of grade nine",
    ]
    assert all(text[span.start : span.end] == span.text for span in spans)
    (place,) = spans[0].occurrences
    assert place.document.id == "1"
    # The first words of a text are found, too, where a space stands before them.
    (whole,) = store.trace("grade seven", tokenizer)
    assert (whole.text, whole.count) == ("grade seven", " ".join(TEXTS).count("grade seven"))
    assert store.trace("no zebra", tokenizer) == []


def test_removed_documents_are_not_found(store, tokenizer, tmp_path):
    import shutil

    folder = shutil.copytree(store.folder, tmp_path / "copy")
    remove_documents(folder, ["1"])
    assert Datastore(folder).trace("clear the cable drum by hand", tokenizer) == []


def test_the_command(run, store, tokenizer, tmp_path, model):
    model.config.save_pretrained(tmp_path / "model")  # no weights: nothing loads them
    tokenizer.save_pretrained(tmp_path / "model")
    text = "We clear the cable drum by hand."
    done = run.good("trace", tmp_path / "model", store.folder, text, "--json")
    (span,) = done.json["spans"]
    assert span["documents"][0]["document"] == "1"
    assert 0.5 < done.json["share"] < 1
    plain = run.good("trace", tmp_path / "model", store.folder, text)
    assert "clear the cable drum by hand.  (once)" in plain.out
    assert "index" in plain.err
    assert run("trace", tmp_path / "model", store.folder, " ").code == 1
