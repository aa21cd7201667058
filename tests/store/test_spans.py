"""`Datastore.trace` against a plain search of all spans, and as a command."""

import numpy as np
from conftest import TEXTS
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import Datastore, remove_documents
from knn_logits.store.spans import longest_spans


class Rows:
    """A table of documents of small numbers."""

    def __init__(self, rows):
        self.length = np.array([len(row) for row in rows])
        self.first = np.cumsum(self.length) - self.length


class Rowed:
    """As much of a datastore as a search reads."""

    def __init__(self, rows, removed):
        self.tokens = np.array([token for row in rows for token in row], np.int32)
        self.documents, self.folder = Rows(rows), "rows"
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

    held = [
        (first, end)
        for first in range(len(text))
        for end in range(first + 1, len(text) + 1)
        if found(text[first:end])
    ]
    whole = [
        (first, end)
        for first, end in held
        if end - first >= min(least, len(text))
        and not any(a <= first and end <= b and (a, b) != (first, end) for a, b in held)
    ]
    store = Rowed(rows, removed)
    spans = list(longest_spans(store, text, least))
    # A text that is shorter than `least` is looked for as it is.
    assert [(first, end) for first, end, _ in spans] == whole
    for first, end, places in spans:
        owners = np.searchsorted(store.documents.first, places, side="right") - 1
        inside = places - store.documents.first[owners]
        assert list(zip(owners, inside, strict=True)) == found(text[first:end])


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


def test_a_span_is_counted_at_the_start_of_a_document_and_inside(build, tokenizer, tmp_path):
    text = "grade seven is here"
    store = build([text, f"Oil of {text}."], tmp_path / "s", calibrate=False)
    (span,) = store.trace(text, tokenizer, min_tokens=2)
    assert (span.text, span.count) == (text, 2)
    assert [one.document.id for one in span.occurrences] == ["0", "1"]
    inside = remove_documents(store, ["0"])
    (span,) = inside.trace(text, tokenizer, min_tokens=2)
    assert (span.text, span.count) == (text, 1)


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
    assert run("trace", tmp_path / "model", store.folder, " ").code == 1
