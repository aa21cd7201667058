"""Pickled clusters are read as data. Whatever else a pickle holds, nothing of it runs."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from legacy_files import csr_pickle

from knn_logits.errors import DamagedError
from knn_logits.lab.legacy import read_clusters

CLUSTERS = np.random.default_rng(0).integers(0, 7, 300)


@pytest.fixture
def file(tmp_path):
    def write(data):
        path = tmp_path / "members.pkl"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_matrix(file, protocol, kind):
    found = read_clusters(file(csr_pickle_as(kind, protocol)), 300)
    np.testing.assert_array_equal(found, CLUSTERS)


def csr_pickle_as(kind, protocol):
    order = np.argsort(CLUSTERS, kind="stable").astype(kind)
    sizes = np.concatenate([[0], np.cumsum(np.bincount(CLUSTERS))]).astype(kind)
    return csr_pickle(CLUSTERS, protocol, indices=order, indptr=sizes)


class _Runs:
    """A pickle that calls a function with arguments when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


HOSTILE = {
    "a command": lambda place: _Runs(os.system, f"touch {place}"),
    "code": lambda place: _Runs(exec, f"open({place!r}, 'w')"),
    "a call in a call": lambda place: _Runs(list, _Runs(os.system, f"touch {place}")),
    "an array": lambda place: np.arange(3),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("protocol", [2, 4])
def test_whatever_else_is_refused(file, tmp_path, name, protocol):
    place = tmp_path / "touched"
    path = file(pickle.dumps(HOSTILE[name](str(place)), protocol))
    with pytest.raises(DamagedError, match="not a pickled matrix of clusters"):
        read_clusters(path, 300)
    assert not place.exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"indices": np.zeros(3, np.int32)},
        {"indices": np.zeros(300, np.int32)},
        {"indices": np.arange(1, 301, dtype=np.int32)},
        {"indices": np.arange(300, dtype=">i4")},
        # Differences of these wrap around: each is at least 0 in int64, and their sum is right.
        {"indptr": np.array([0, 2**62, -(2**63), -(2**62), 300]), "indices": np.arange(300)},
        {"indptr": np.array([0, 305, 300]), "indices": np.arange(300)},
    ],
)
def test_arrays_that_do_not_fit(file, changed):
    with pytest.raises(DamagedError):
        read_clusters(file(csr_pickle(CLUSTERS, **changed)), 300)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b"x.",
        b"\x80\x04\x8b\xff\xff\xff\x7fx.",
        b"\x80\x04N" + b"r\xff\xff\xff\xff" + b".",
        b"\x80\x04" + b"(" * 100_000 + b".",
        b"",
    ],
    ids=range(5),
)
def test_sizes_take_no_memory(file, data):
    with pytest.raises(DamagedError):
        read_clusters(file(data), 300)


@given(st.data())
def test_damage_is_refused_or_harmless(tmp_path_factory, data):
    whole = csr_pickle(CLUSTERS, data.draw(st.sampled_from([3, 4, 5])))
    place = data.draw(st.integers(0, len(whole) - 1))
    broken = whole[:place]
    if data.draw(st.booleans()):
        broken += bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    path = tmp_path_factory.mktemp("damaged") / "members.pkl"
    path.write_bytes(broken)
    try:
        found = read_clusters(path, 300)
    except DamagedError:
        return
    assert (found.dtype, found.shape, found.min() >= 0) == (np.int32, (300,), True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "members.pkl")
    with pytest.raises(DamagedError, match="not a regular file"):
        read_clusters(tmp_path / "members.pkl", 300)
