"""Pickled matrices read as data; pickles that do anything else are refused, and nothing runs."""

import builtins
import os
import pickle
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from legacy_files import csr_arrays, csr_pickle

from knn_logits.errors import DamagedError
from knn_logits.lab.csr_pickle import read_csr

CLUSTERS = np.random.default_rng(0).integers(0, 7, 300)


@pytest.fixture
def file(tmp_path):
    def write(data):
        path = tmp_path / "members.pkl"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_matrix(file, protocol):
    shape, indptr, indices = read_csr(file(csr_pickle(CLUSTERS, protocol)))
    assert shape == (7, 300)
    mine = csr_arrays(CLUSTERS)
    np.testing.assert_array_equal(indptr, mine[0])
    np.testing.assert_array_equal(indices, mine[1])


def test_wide_numbers_and_numpy_sizes(file):
    indptr, indices = csr_arrays(CLUSTERS)
    data = csr_pickle(
        CLUSTERS,
        _shape=(np.int64(7), np.int64(300)),
        indices=indices.astype(np.int64),
        indptr=indptr.astype(np.int64),
    )
    shape, _, found = read_csr(file(data))
    assert shape == (7, 300)
    assert found.dtype == np.int64


class _Runs:
    """A pickle that calls a function with arguments when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


HOSTILE = {
    "a command": lambda place: _Runs(os.system, f"touch {place}"),
    "a process": lambda place: _Runs(subprocess.call, ["touch", place]),
    "code": lambda place: _Runs(exec, f"open({place!r}, 'w')"),
    "an attribute": lambda place: _Runs(builtins.getattr, place, "upper"),
    "a call in a call": lambda place: _Runs(list, _Runs(os.system, f"touch {place}")),
    "an import": lambda place: _Runs(__import__, "os"),
    "a plain list": lambda place: [1, 2, 3],
    "a plain dict": lambda place: {"_shape": (1, 1)},
    "an array": lambda place: np.arange(3),
    "objects": lambda place: np.array([None, os.system], dtype=object),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("protocol", [2, 4])
def test_whatever_else_is_refused(file, tmp_path, name, protocol):
    place = tmp_path / "touched"
    path = file(pickle.dumps(HOSTILE[name](str(place)), protocol))
    with pytest.raises(DamagedError, match="not a pickled CSR matrix"):
        read_csr(path)
    assert not place.exists()


def test_hostile_parts_of_a_matrix(file, monkeypatch):
    """Nested calls in the place of an array, and nothing is called."""
    ran = []
    monkeypatch.setattr(os, "system", lambda *_: ran.append(1))
    for part in ("data", "indices", "indptr", "_shape", "extra"):
        data = csr_pickle(CLUSTERS, **{part: _Runs(os.remove, "nowhere")})
        with pytest.raises(DamagedError, match=r"it asks for (posix|nt)\.remove"):
            read_csr(file(data))
    assert ran == []


@pytest.mark.parametrize(
    "changed",
    [
        {"_shape": (8, 300)},
        {"_shape": (7.0, 300)},
        {"_shape": (-1, 300)},
        {"indices": np.zeros((2, 3), np.int32)},
        {"indices": np.zeros(3, np.float64)},
        {"indices": np.zeros(3, dtype=">i4")},
        {"indptr": [0, 1]},
        {"indptr": np.zeros(8, "S4")},
    ],
)
def test_arrays_that_do_not_fit(file, changed):
    with pytest.raises(DamagedError):
        read_csr(file(csr_pickle(CLUSTERS, **changed)))


def test_sizes_are_compared_with_the_file_before_memory_is_taken(file):
    whole = csr_pickle(CLUSTERS, indices=np.arange(2000, dtype=np.int32))
    place = whole.index(b"B") if b"B" in whole else 0
    for size in (1 << 31, (1 << 32) - 1):
        huge = whole[: place + 1] + size.to_bytes(4, "little") + whole[place + 5 :]
        with pytest.raises(DamagedError):
            read_csr(file(huge))
    for data in (
        b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b"x.",
        b"\x80\x04\x96" + (1 << 63).to_bytes(8, "little") + b"x.",
        b"\x80\x04X\xff\xff\xff\xffx.",
        b"\x80\x04\x8b\xff\xff\xff\x7fx.",
        b"\x80\x04N" + b"r\xff\xff\xff\xff" + b".",
        b"\x80\x04" + b"(" * 100_000 + b".",
        b"",
        b".",
        b"\x80",
    ):
        with pytest.raises(DamagedError):
            read_csr(file(data))
    # An array says that it has 2^40 numbers, in a few bytes.
    data = csr_pickle(CLUSTERS[:100])
    small, large = b"K\x64\x85", b"\x8a\x06" + (1 << 40).to_bytes(6, "little") + b"\x85"
    assert small in data
    with pytest.raises(DamagedError):
        read_csr(file(data.replace(small, large)))


@given(st.data())
def test_damage_is_refused_or_harmless(tmp_path_factory, data):
    whole = csr_pickle(CLUSTERS, data.draw(st.sampled_from([3, 4, 5])))
    kind = data.draw(st.sampled_from(["cut", "byte", "twice"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        broken = whole[:place]
    elif kind == "byte":
        broken = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    else:
        broken = whole[:place] + whole[place // 2 :]
    path = tmp_path_factory.mktemp("damaged") / "members.pkl"
    path.write_bytes(broken)
    try:
        (rows, _), indptr, indices = read_csr(path)
    except DamagedError:
        return
    assert len(indptr) == rows + 1
    assert indices.ndim == 1


def nested(depth, twice):
    """A tuple in a tuple in a tuple, each of them kept and taken again: few bytes, much text."""
    again = b"h\x00" if twice else b""
    return b"K\x01q\x00" + b"".join(
        again + (b"\x86" if twice else b"\x85") + b"q\x00" for _ in range(depth)
    )


@pytest.mark.parametrize(("depth", "twice"), [(60, True), (5000, False), (2, True), (3, False)])
def test_nested_tuples_take_no_memory_and_no_words(file, depth, twice):
    whole = csr_pickle(CLUSTERS, 3)
    dtype = b"X\x02\x00\x00\x00i4"
    assert dtype in whole
    with pytest.raises(DamagedError) as caught:
        read_csr(file(whole.replace(dtype, nested(depth, twice), 1)))
    assert len(str(caught.value)) < 400


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "members.pkl")
    with pytest.raises(DamagedError, match="not a regular file"):
        read_csr(tmp_path / "members.pkl")
