"""One thing of a datastore or of its model is another's: each is refused, naming what differs."""

import shutil

import numpy as np
import pytest
from conftest import TEXTS
from folders import change, one_line, read_content, refit

from knn_logits import (
    Datastore,
    IndexConfig,
    KNNLogitsError,
    KNNLogitsProcessor,
    WindowConfig,
)
from knn_logits.store import layout
from knn_logits.store.files import write_arrays


@pytest.fixture(scope="module")
def made(build, tmp_path_factory):
    """Datastores of one text, and of another; each with an inverted file."""
    folder = tmp_path_factory.mktemp("swaps")
    for name, texts in (("mine", TEXTS[:6]), ("other", TEXTS[::-1][:6])):
        build(
            texts,
            folder / name,
            window=WindowConfig(64, 32),
            index=IndexConfig("IVF4,SQ8", nprobe=4),
            lmbda=0.4,
        )
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made / "mine", tmp_path / "s")


def refused(model, folder):
    """What attaching a processor to the datastore says."""
    with pytest.raises(KNNLogitsError) as caught, KNNLogitsProcessor(model, Datastore(folder)):
        pass
    text = one_line(caught)
    assert str(folder) in text or "index" in text
    return text


def test_the_precision_of_the_keys(model, folder):
    change(folder, dtype="float32")
    assert "is damaged: holds float16" in refused(model, folder)


def copy_file(made, folder, kind):
    record = Datastore(made / "other").manifest.file(kind)
    shutil.copy(made / "other" / record.name, folder / record.name)


def test_the_index_of_another_datastore(model, made, folder):
    copy_file(made, folder, "index")
    text = refused(model, folder)
    assert "index.safetensors" in text
    refit(folder)
    text = refused(model, folder)
    assert "returns different entries than" in text or "is not a" in text


def test_the_index_of_another_datastore_of_the_same_size(model, made, folder):
    """As many keys, of another text: only what it finds tells."""
    store = Datastore(folder)
    arrays = store.index_arrays()
    order = np.random.default_rng(0).permutation(len(store))
    arrays["ids"] = order[arrays["ids"]].astype(np.int64)
    write_arrays(folder / layout.INDEX, arrays, {})
    refit(folder)
    assert "returns different entries than" in refused(model, folder)


def test_the_kind_of_index(model, folder):
    index = read_content(folder)["index"] | {"factory": "IVF4,SQ4"}
    change(folder, index=index)
    assert "is not a 'IVF4,SQ4'" in refused(model, folder)
    change(folder, index=index | {"factory": "IVF4,SQ9"})
    assert "there is no index type 'IVF4,SQ9'" in refused(model, folder)


@pytest.mark.parametrize("kind", ["tokens", "checks"])
def test_a_file_of_another_datastore_under_a_hash_that_fits(model, made, folder, kind):
    store, other = Datastore(folder), Datastore(made / "other")
    copy_file(made, folder, kind)
    refit(folder)
    if kind == "checks":
        assert "returns different entries than" in refused(model, folder)
    elif len(other.tokens) != len(store.tokens):
        assert "tokens.npy" in refused(model, folder)
