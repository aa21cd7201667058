"""A datastore in step with documents: what is computed, what is found, what is left alone."""

import logging

import numpy as np
import pytest
from conftest import PAIRS, TEXTS, make_marian
from folders import contents, names, one_line
from interrupted import Stop, stopping

from knn_logits import (
    Document,
    WindowConfig,
    add_documents,
    build_datastore,
    remove_documents,
    sync_documents,
)
from knn_logits.building import steps
from knn_logits.building.removing import compact
from knn_logits.errors import CorpusError, DatastoreError
from knn_logits.index import kinds
from knn_logits.store import layout

SETTINGS = {"window": WindowConfig(32, 16), "k": 8, "lmbda": 0.5, "temperature": 5.0}
FIRST_TEXTS = {f"{name}.txt": TEXTS[number] for number, name in enumerate("abcde")}


def documents(texts):
    return [Document(text, id) for id, text in texts.items()]


@pytest.fixture
def store(build, tmp_path):
    return build(documents(FIRST_TEXTS), tmp_path / "s", **SETTINGS)


@pytest.fixture
def sync(model, tokenizer, store):
    def synced(texts, **settings):
        given = documents(texts) if isinstance(texts, dict) else texts
        return sync_documents(model, tokenizer, store.folder, given, **settings)

    return synced


def held(store):
    """The texts that are found, by id."""
    removed = set(store.manifest.removed)
    found = {}
    for number in range(len(store.documents)):
        one = store.documents[number]
        if number not in removed:
            found.setdefault(one.id, []).append(
                store.tokens[one.first : one.first + one.length].tolist()
            )
    return found


def expected(tokenizer, texts):
    return {id: [tokenizer(text)["input_ids"]] for id, text in texts.items()}


def test_new_changed_and_gone(sync, store, tokenizer):
    texts = {**FIRST_TEXTS, "b.txt": "Other words stand here now.", "f.txt": TEXTS[5]}
    del texts["d.txt"]
    done = sync(texts)
    assert (done.unchanged, done.kept) == (3, ())
    new = [len(tokenizer(texts[id])["input_ids"]) for id in ("b.txt", "f.txt")]
    assert done.tokens == sum(new)
    assert (done.added, done.changed, done.removed) == (("f.txt",), ("b.txt",), ("d.txt",))
    assert held(done.datastore) == expected(tokenizer, texts)
    assert done.datastore.manifest.removed == (1, 3)
    assert done.datastore.manifest.settings.stale
    assert layout.JOURNAL not in names(store.folder)
    small = compact(done.datastore)
    assert held(small) == expected(tokenizer, texts)


def test_the_same_again_writes_nothing(sync, store):
    before = contents(store.folder)
    assert sync(FIRST_TEXTS).unchanged == 5
    assert sync(dict(reversed(FIRST_TEXTS.items()))).unchanged == 5
    assert contents(store.folder) == before


def test_only_what_is_new_is_computed(sync, store, monkeypatch):
    rows = []
    real = steps.compute_keys

    def counted(*arguments, **settings):
        for part in real(*arguments, **settings):
            rows.append(len(part))
            yield part

    monkeypatch.setattr(steps, "compute_keys", counted)
    shards = [one.name for one in store.manifest.key_shards]
    before = contents(store.folder)
    done = sync({**FIRST_TEXTS, "f.txt": TEXTS[5]})
    assert sum(rows) == done.tokens - 1
    assert all(contents(store.folder)[name] == before[name] for name in shards)
    rows.clear()
    without = dict(list(FIRST_TEXTS.items())[1:])
    assert len(sync(without).removed) == 2
    assert not rows


def test_another_title_makes_another_document(sync, store, tokenizer):
    first = Document(FIRST_TEXTS["a.txt"], "a.txt", title="Title")
    done = sync([first, *documents(FIRST_TEXTS)[1:]])
    assert (done.changed, done.unchanged) == (("a.txt",), 4)
    assert held(done.datastore) == expected(tokenizer, FIRST_TEXTS)
    assert [row.title for row in done.datastore.documents if row.id == "a.txt"] == [None, "Title"]
    assert sync([first, *documents(FIRST_TEXTS)[1:]]).unchanged == 5


def test_parts_that_share_an_id_are_compared_one_by_one(sync):
    parts = [Document(text, "large") for text in TEXTS[:4]]
    assert sync(parts, force=True).added == ("large",)
    assert sync(parts).unchanged == 1
    done = sync([*parts[:3], Document("The last part is another.", "large")])
    assert done.changed == ("large",)
    assert done.tokens < 20
    assert sync(parts[:2]).tokens == 0


def test_removed_documents_come_back(sync, store, tokenizer):
    remove_documents(store, ["a.txt"])
    done = sync(FIRST_TEXTS)
    assert (done.added, done.unchanged) == (("a.txt",), 4)
    assert held(done.datastore) == expected(tokenizer, FIRST_TEXTS)


def test_what_could_not_be_read_is_kept(sync):
    texts = dict(list(FIRST_TEXTS.items())[:3])
    done = sync(texts, keep=lambda id: id == "e.txt")
    assert (done.kept, done.removed) == (("e.txt",), ("d.txt",))
    assert set(held(done.datastore)) == {*texts, "e.txt"}


@pytest.mark.parametrize("given", [{}, {"other": "Not from here."}])
def test_another_folder_by_mistake_is_refused(sync, store, given):
    before = contents(store.folder)
    with pytest.raises(CorpusError, match="none of the 5 documents") as caught:
        sync(given)
    one_line(caught)
    assert contents(store.folder) == before


def test_without_keys_it_can_only_remove(sync, store):
    index = [one for one in store.manifest.files if layout.kind_of(one.name) != "keys"]
    store.manifest.model_copy(update={"files": tuple(index)}).write(store.folder)
    with pytest.raises(DatastoreError, match="without keys"):
        sync({**FIRST_TEXTS, "f.txt": TEXTS[5]})
    assert sync({"a.txt": FIRST_TEXTS["a.txt"]}).unchanged == 1


def test_one_stream_is_warned_of(model, tokenizer, tmp_path, caplog):
    folder = tmp_path / "stream"
    build_datastore(model, tokenizer, documents(FIRST_TEXTS), folder, concatenate=True, **SETTINGS)
    with caplog.at_level(logging.WARNING, "knn_logits"):
        sync_documents(model, tokenizer, folder, documents({"a.txt": FIRST_TEXTS["a.txt"]}))
    assert "one stream" in caplog.text


def test_compacting_goes_back_to_an_exact_index(store, sync, monkeypatch):
    assert store.manifest.index.requested == "auto"
    monkeypatch.setattr(kinds, "EXACT_UP_TO", len(store))
    grown = sync({**FIRST_TEXTS, "f.txt": TEXTS[6]}).datastore
    assert grown.manifest.index.factory == "IVF64,SQ8"
    small = compact(remove_documents(grown, "f.txt"))
    assert (small.manifest.index.factory, small.manifest.index.requested) == ("exact", "auto")
    assert len(small) == len(store)


def test_pairs(tokenizer, tmp_path):
    marian = make_marian()
    rows = [Document(target, f"p{n}", source=source) for n, (source, target) in enumerate(PAIRS)]
    build_datastore(marian, tokenizer, rows[:4], tmp_path / "p", **SETTINGS)
    again = [*rows[1:5], Document(rows[0].text, "p0", source="Another source.")]
    done = sync_documents(marian, tokenizer, tmp_path / "p", again)
    assert (done.added, done.changed, done.unchanged) == (("p4",), ("p0",), 3)


@pytest.mark.parametrize("other", [True, False])
def test_a_stopped_call_goes_on_and_another_text_begins_again(
    sync, store, monkeypatch, caplog, tokenizer, other
):
    monkeypatch.setattr("knn_logits.engine.windows._BUFFER_BYTES", 1024)
    texts = {**FIRST_TEXTS, "b.txt": TEXTS[6] * 3, "g.txt": TEXTS[7] * 3}
    monkeypatch.setattr("knn_logits.store.writer.SHARD_BYTES", 2048)
    small = {"batch_tokens": 32}
    before = contents(store.folder)
    with pytest.raises(Stop):
        sync(texts, progress=stopping(100), **small)
    assert contents(store.folder).items() >= before.items()
    with caplog.at_level(logging.WARNING, "knn_logits"):
        texts |= {"g.txt": TEXTS[7]} if other else {}
        done = sync(texts, **small)
    message = "has a different corpus" if other else "continuing the unfinished sync"
    assert message in caplog.text
    assert held(done.datastore) == expected(tokenizer, texts)


# The same content twice


def test_the_same_content_is_not_added_again(model, tokenizer, store, caplog):
    before = contents(store.folder)
    copies = [Document(TEXTS[0], "copy.txt"), TEXTS[1]]
    with caplog.at_level(logging.WARNING, "knn_logits"):
        again = add_documents(model, tokenizer, store, copies)
    assert "already has 2 of the documents" in caplog.text
    assert "copy.txt (as a.txt)" in caplog.text
    assert contents(again.folder) == before
    with caplog.at_level(logging.WARNING, "knn_logits"):
        grown = add_documents(model, tokenizer, store, [TEXTS[2], "This is new."])
    assert "already has 1 of the documents" in caplog.text
    assert (grown.manifest.documents, grown.documents[5].id) == (6, "6")


def test_ids_that_others_bear_are_told_apart(model, tokenizer, store, caplog):
    with caplog.at_level(logging.WARNING, "knn_logits"):
        parts = [Document("Part one.", "a.txt"), Document("Part two.", "a.txt")]
        grown = add_documents(model, tokenizer, store, parts)
    assert "a.txt#2 for a.txt" in caplog.text
    assert [grown.documents[number].id for number in (5, 6)] == ["a.txt#2", "a.txt#2"]
    same = add_documents(model, tokenizer, grown, [Document("Part one.", "a.txt")])
    assert same.manifest == grown.manifest


def test_the_same_content_as_a_removed_one_is_added(model, tokenizer, store):
    remove_documents(store, "a.txt")
    grown = add_documents(model, tokenizer, store, [Document(TEXTS[0], "a.txt")])
    assert grown.documents[5].id == "a.txt"
    assert np.array_equal(grown.manifest.removed, [0])
