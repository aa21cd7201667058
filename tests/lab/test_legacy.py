"""Which files belong together, and which numbers they hold."""

import os

import numpy as np
import pytest
from legacy_files import write_memmap

from knn_logits.errors import CorpusError
from knn_logits.lab.legacy import find_files, read_keys, read_values, written_entries

DIM, VOCABULARY = 6, 384
VALUES = np.random.default_rng(0).integers(0, VOCABULARY, 50)
KEYS = np.random.default_rng(1).standard_normal((50, DIM))


def write(folder, *, values="<i4", keys="<f2", names=("vals.npy", "keys.npy"), numbers=VALUES):
    write_memmap(folder / names[0], numbers.astype(values))
    if keys:
        write_memmap(folder / names[1], KEYS.astype(keys))
    return find_files(folder)


@pytest.mark.parametrize("names", [("vals.npy", "keys.npy"), ("values.npy", "keys.npy"),
                                   ("dstore_vals.npy", "dstore_keys.npy")])  # fmt: skip
def test_names(tmp_path, names):
    (tmp_path / "faiss.index").write_bytes(b"")
    (tmp_path / "faiss.trained_index").write_bytes(b"")
    files = write(tmp_path, names=names)
    assert files.keys.name == names[1]
    assert files.index.name == "faiss.index"
    assert files.entries is None


def test_names_of_knn_transformers(tmp_path):
    for name in (
        "dstore_gpt2_50_6_vals.npy",
        "dstore_gpt2_50_6_keys.npy",
        "index_gpt2_50_6.indexed",
        "index_gpt2_60_6.indexed",
        "members_gpt2_50_6_20_5.pkl",
    ):
        (tmp_path / name).write_bytes(b"")
    files = find_files(tmp_path)
    assert (files.entries, files.dim) == (50, 6)
    assert files.index.name == "index_gpt2_50_6.indexed"
    assert files.clusters.name == "members_gpt2_50_6_20_5.pkl"
    assert find_files(tmp_path / "dstore_gpt2_50_6_vals.npy") == files
    (tmp_path / "dstore_gpt2_60_6_vals.npy").write_bytes(b"")
    with pytest.raises(
        CorpusError, match=r"not hold exactly one datastore.*dstore_gpt2_50_6_vals\.npy"
    ):
        find_files(tmp_path)
    assert find_files(tmp_path / "dstore_gpt2_60_6_vals.npy").keys is None


def test_nothing_to_find(tmp_path):
    with pytest.raises(CorpusError, match="values: none"):
        find_files(tmp_path)
    with pytest.raises(CorpusError, match="values: none"):
        find_files(tmp_path / "none")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(CorpusError, match="not a file of values"):
        find_files(tmp_path / "a.txt")


@pytest.mark.parametrize("values", ["<i2", "<i4", "<i8"])
@pytest.mark.parametrize("keys", ["<f2", "<f4", None])
@pytest.mark.parametrize("known", [True, False])
def test_number_formats_are_found(tmp_path, values, keys, known):
    files = write(tmp_path, values=values, keys=keys)
    found = read_values(files, DIM, VOCABULARY, 50 if known else None)
    np.testing.assert_array_equal(found, VALUES)
    if keys:
        read = read_keys(files.keys, 50, DIM)
        np.testing.assert_array_equal(read, KEYS.astype(keys))


def test_the_end_that_was_never_written():
    keys, values = np.zeros((90_000, 2), np.float16), np.zeros(90_000, np.int32)
    assert written_entries(keys, values) == 0
    values[70_001] = 3
    assert written_entries(keys, values) == 70_002
    keys[70_005] = 1
    assert written_entries(keys, values) == 70_006
    keys[-1] = 1
    assert written_entries(keys, values) == 90_000


@pytest.mark.parametrize("name", ["faiss.index", "vals.npy", "keys.npy"])
@pytest.mark.parametrize("make", [getattr(os, "mkfifo", os.mkdir), os.mkdir])
def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_refused(tmp_path, name, make):
    """A pipe would be waited for without end."""
    (tmp_path / "vals.npy").write_bytes(bytes(8))
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(CorpusError, match="not a regular file"):
        find_files(tmp_path)
