from contextlib import suppress

import numpy as np
import pytest
from folders import names, one_line
from handmade import write_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits.errors import CorpusError, MismatchError
from knn_logits.store import job as job_module
from knn_logits.store import layout, writer
from knn_logits.store.job import begin
from knn_logits.store.writer import shard_rows, write_keys

DOCUMENTS = [[5, 6, 7, 8], [9], [10, 11, 12]]


@pytest.fixture
def job(tmp_path):
    with begin(tmp_path / "s", "build", {}) as one:
        yield one


# Tokens and documents


@pytest.mark.parametrize("documents", [[], [[1]], [[1], [2], [3]]])
@pytest.mark.parametrize("concatenate", [False, True])
def test_no_document_of_two_tokens(job, documents, concatenate):
    writer = write_tokens(job, documents, concatenate=concatenate)
    if concatenate and len(documents) > 1:
        assert writer.contexts().entries == 2
        return
    with pytest.raises(CorpusError, match="two tokens"):
        writer.contexts()


@pytest.mark.parametrize("other", [[[5, 6, 7, 8], [9]], [[5, 6, 7], [8, 9], [10, 11, 12]]])
def test_a_job_is_about_one_text(job, other):
    write_tokens(job, DOCUMENTS)
    before = (job.folder / layout.TOKENS).read_bytes()
    with pytest.raises(MismatchError, match="has a different corpus") as caught:
        write_tokens(job, other)
    assert "--overwrite" in one_line(caught)
    assert (job.folder / layout.TOKENS).read_bytes() == before
    assert names(job.folder) == [layout.JOURNAL, layout.DOCUMENTS, layout.TOKENS]
    write_tokens(job, DOCUMENTS)


# Keys


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 100), st.lists(st.integers(0, 15), max_size=6))
def test_shards_hold_all_keys_in_order(tmp_path_factory, entries, shard_bytes, cuts):
    folder = tmp_path_factory.mktemp("keys")
    keys = np.arange(entries * 2, dtype=np.float16).reshape(entries, 2)
    with begin(folder, "build", {}) as job:
        rows = shard_rows(2, "float16", shard_bytes)
        write_keys(job, np.split(keys, np.cumsum(cuts).clip(max=entries)), rows)
        assert job.keys == entries
    assert rows == max(1, shard_bytes // 4)
    shards = [np.load(job.path("keys", number)) for number in range(-(-entries // rows))]
    assert [one.name for one in job.shards] == [path for path in names(folder) if "keys" in path]
    assert len(job.shards) == len(shards)
    assert all(len(shard) == rows for shard in shards[:-1])
    np.testing.assert_array_equal(np.concatenate(shards), keys)


def test_a_writer_goes_on_behind_the_shards_that_are_there(tmp_path):
    keys = np.arange(20, dtype=np.float16).reshape(10, 2)

    def stopped():
        yield keys[:7]
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), begin(tmp_path, "build", {}) as job:
        write_keys(job, stopped(), 4)
    with begin(tmp_path, "build", {}) as job:
        assert job.keys == 4
        write_keys(job, [keys[4:]], 4)
        shards = [np.load(tmp_path / one.name) for one in job.shards]
    assert [len(one) for one in shards] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate(shards), keys)


def test_a_shard_that_is_not_full_is_saved_and_filled_later(tmp_path, monkeypatch):
    keys = np.arange(40, dtype=np.float16).reshape(20, 2)

    def stopped(first, last):
        yield from np.split(keys[first:last], last - first)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_SAVE_SECONDS", 0)
    for first, last in ((0, 3), (3, 14), (14, 15)):
        with suppress(KeyboardInterrupt), begin(tmp_path, "build", {}) as job:
            assert job.keys == first
            write_keys(job, stopped(first, last), 8)
    with begin(tmp_path, "build", {}) as job:
        assert job.keys == 15
        write_keys(job, [keys[15:]], 8)
        shards = [np.load(tmp_path / one.name) for one in job.shards]
    assert [len(one) for one in shards] == [8, 8, 4]
    np.testing.assert_array_equal(np.concatenate(shards), keys)


@pytest.mark.parametrize("killed", ["rename", "write_array", "note", "delete"])
def test_a_kill_between_a_shard_and_its_note_loses_no_saved_key(tmp_path, monkeypatch, killed):
    """Under load, reading a file back for its note takes long enough to be killed in it."""
    keys = np.arange(40, dtype=np.float16).reshape(20, 2)
    monkeypatch.setattr(writer, "_SAVE_SECONDS", 0)
    calls = []

    def killing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    with suppress(KeyboardInterrupt), begin(tmp_path, "build", {}) as job:
        place = type(job) if killed == "note" else job_module
        original = getattr(place, killed)
        with monkeypatch.context() as patch:
            patch.setattr(place, killed, killing)
            write_keys(job, np.split(keys, 20), 8)
    assert len(calls) >= 3
    with begin(tmp_path, "build", {}) as job:
        assert 2 <= job.keys <= 4
        write_keys(job, [keys[job.keys :]], 8)
        shards = [np.load(tmp_path / one.name) for one in job.shards]
        names = {one.name for one in job.shards} | {layout.JOURNAL, layout.LOCK}
    np.testing.assert_array_equal(np.concatenate(shards), keys)
    assert {path.name for path in tmp_path.iterdir()} == names


def test_ranks_fill_no_shard_of_another_run(tmp_path):
    with begin(tmp_path, "build", {}) as job:
        write_keys(job, [np.zeros((5, 2), np.float16)], 4)
        job.drop_unfilled(4)
        assert (job.keys, len(job.shards)) == (4, 1)
        job.drop_unfilled(4)
        assert job.keys == 4


# A full disk
