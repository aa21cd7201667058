from contextlib import suppress

import numpy as np
import pytest
from folders import names, one_line
from handmade import shards_of, write_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits.errors import CorpusError, MismatchError
from knn_logits.store import layout, writer
from knn_logits.store.job import Job, begin
from knn_logits.store.writer import write_keys

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
@given(st.integers(1, 80), st.integers(1, 100), st.lists(st.integers(0, 15), max_size=6))
def test_shards_hold_all_keys_in_order(tmp_path_factory, entries, shard_bytes, cuts):
    folder = tmp_path_factory.mktemp("keys")
    keys = np.arange(entries * 2, dtype=np.float16).reshape(entries, 2)
    with shards_of(shard_bytes), begin(folder, "build", {}) as job:
        write_keys(job, np.split(keys, np.cumsum(cuts).clip(max=entries)))
        assert job.keys == entries
    shards = [np.load(job.path("keys", number)) for number in range(len(job.shards))]
    assert [one.name for one in job.shards] == [path for path in names(folder) if "keys" in path]
    assert all(len(shard) == max(1, shard_bytes // 4) for shard in shards[:-1])
    np.testing.assert_array_equal(np.concatenate(shards), keys)


@pytest.mark.parametrize("killed", ["replacing", "note"])
def test_a_writer_goes_on_behind_the_shards_that_are_there(tmp_path, monkeypatch, killed):
    keys = np.arange(40, dtype=np.float16).reshape(20, 2)
    place = Job if killed == "note" else writer
    original, calls = getattr(place, killed), []

    def killing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    with shards_of(16):
        with suppress(KeyboardInterrupt), monkeypatch.context() as patch:
            patch.setattr(place, killed, killing)
            with begin(tmp_path, "build", {}) as job:
                write_keys(job, np.split(keys, 20))
        with begin(tmp_path, "build", {}) as job:
            assert job.keys == 8
            write_keys(job, [keys[8:]])
            shards = [np.load(tmp_path / one.name) for one in job.shards]
    assert [len(one) for one in shards] == [4] * 5
    np.testing.assert_array_equal(np.concatenate(shards), keys)
