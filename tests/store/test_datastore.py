import itertools
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from folders import one_line, refit
from handmade import document_records, make_store, naive_entries
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from knn_logits.errors import ConfigError, DamagedError
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore

DOCUMENTS = [[5, 6, 7, 8], [9], [10, 11, 12], [13], [14, 15]]
texts = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=6)


# What is where


@settings(max_examples=20)
@given(texts, st.booleans(), st.integers(0, 5), st.integers(0, 5))
def test_entries_and_passages_are_those_of_a_plain_loop(documents, concatenate, before, after):
    expected = naive_entries(documents, concatenate=concatenate)
    assume(expected)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "s", documents, concatenate=concatenate)
        assert len(store) == len(expected) == store.contexts.entries
        assert store.values.tolist() == [token for _, _, token in expected]
        assert store.tokens.tolist() == [token for tokens in documents for token in tokens]
        records = document_records(documents)
        for entry, (place, number, token) in enumerate(expected):
            assert store.contexts.token_of(entry) == place
            assert store.documents.at_token(place) == number
            # A passage never crosses a document's edge.
            tokens, here = documents[number], place - records[number].first
            passage = store.passage(entry, before, after)
            assert passage.before == tokens[max(0, here - before) : here]
            assert passage.token == token
            assert passage.after == tokens[here + 1 : here + 1 + after]
            assert passage.document == records[number]
        for entry in (-1, len(store)):
            with pytest.raises(ConfigError, match=f"there is no entry {entry}"):
                store.passage(entry)
        owners = [number for _, number, _ in expected]
        assert store.goes_on.tolist() == [a == b for a, b in pairwise([*owners, None])]
        lengths = store.contexts.length.tolist()
        firsts = store.contexts.first_entry.tolist()
        assert sum(length - 1 for length in lengths) == len(store)
        assert firsts == [sum(one - 1 for one in lengths[:n]) for n in range(len(lengths))]


@settings(max_examples=20)
@given(texts, st.booleans(), st.integers(1, 64), st.data())
def test_keys_are_gathered_from_all_shards(documents, concatenate, shard_bytes, data):
    assume(naive_entries(documents, concatenate=concatenate))
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(
            Path(folder) / "s", documents, concatenate=concatenate, shard_bytes=shard_bytes
        )
        keys = np.random.default_rng(0).standard_normal((len(store), 4)).astype(np.float16)
        rows = max(1, shard_bytes // 8)
        assert len(store.manifest.key_shards) == -(-len(store) // rows)
        wanted = data.draw(st.lists(st.integers(0, len(store) - 1), max_size=12))
        found = store.keys(np.array(wanted, np.int64))
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, keys[wanted].reshape(-1, 4))
        for size, first in itertools.product((1, 3, 1000), (0, 1, len(store) // 2, len(store))):
            batches = list(store.key_batches(first, size=size))
            assert all(len(one) <= size and one.dtype == np.float32 for one in batches)
            found = np.concatenate([*batches, np.empty((0, 4), np.float32)])
            np.testing.assert_array_equal(found, keys[first:].astype(np.float32))


# What is not a datastore, or no whole one


FILES = [layout.TOKENS, layout.DOCUMENTS, layout.CHECKS, "keys-00000.npy", "keys-00001.npy"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["missing", "shorter", "longer", "zeros", "a folder"])
def test_a_file_that_is_damaged(tmp_path, name, change):
    make_store(tmp_path / "s", DOCUMENTS, shard_bytes=32)
    path = tmp_path / "s" / name
    whole = path.read_bytes()
    path.unlink()
    content = {"shorter": whole[:-1], "longer": whole + b"\0", "zeros": bytes(len(whole))}
    if change == "a folder":
        path.mkdir()
    elif change != "missing":
        path.write_bytes(content[change])
    said = {"missing": "is missing", "a folder": "not a regular file", "zeros": name}
    message = said.get(change, f"{len(content.get(change, b''))} bytes")
    with pytest.raises(DamagedError, match=message) as caught:
        Datastore(tmp_path / "s")
    assert name in one_line(caught)


def test_a_pickled_array_is_not_loaded(tmp_path):
    store = make_store(tmp_path / "s", DOCUMENTS)
    path = tmp_path / "s" / layout.TOKENS
    np.save(path, np.array([{"a": 1}] * 11, dtype=object), allow_pickle=True)
    refit(store.folder)
    with pytest.raises(DamagedError, match="tokens"):
        Datastore(store.folder)


def with_table(store, data):
    (store.folder / layout.DOCUMENTS).write_bytes(data)
    refit(store.folder)
    return Datastore(store.folder)


ROWS = [f'[{length},"{n}","title {n}",null,null]' for n, length in enumerate((4, 1, 3, 1, 2))]


@pytest.mark.parametrize(
    "changed",
    [
        ROWS[:4],
        ["", *ROWS[1:]],
        [ROWS[0].replace("4", "5"), *ROWS[1:]],
        [ROWS[0].replace("4", "-1"), ROWS[1].replace("1", "6", 1), *ROWS[2:]],
        [ROWS[0].replace("4", "1" * 5000), *ROWS[1:]],
        [ROWS[0].replace("4", "4.0"), *ROWS[1:]],
        [ROWS[0].replace('"0"', "null"), *ROWS[1:]],
        [ROWS[0].replace('"0"', '"\\ud800"'), *ROWS[1:]],
        [ROWS[0].replace("]", ',"source",1]'), *ROWS[1:]],
        ['{"length": 4}', *ROWS[1:]],
        ["[" * 10**6, *ROWS[1:]],
        [ROWS[0].replace('"0"', f'"{"x" * 20_000}"'), *ROWS[1:]],
        [ROWS[0].replace("title 0", "title \xff"), *ROWS[1:]],
    ],
)
def test_a_table_of_documents_that_is_wrong(tmp_path, changed):
    store = make_store(tmp_path / "s", DOCUMENTS)
    assert with_table(store, "".join(f"{row}\n" for row in ROWS).encode()).documents[4].id == "4"
    with pytest.raises(DamagedError, match=r"documents\.jsonl cannot be read") as caught:
        with_table(store, "".join(f"{row}\n" for row in changed).encode("latin-1"))
    assert len(one_line(caught)) < 600
