"""Every public function takes several documents, and none takes a text for its characters."""

import pytest
from conftest import TEXTS

import knn_logits
from knn_logits import Datastore, Document
from knn_logits.errors import ConfigError, CorpusError


@pytest.fixture
def grown(build, tmp_path):
    return build(TEXTS[:3], tmp_path / "store", calibrate=False)


def test_a_build_of_one_text_is_refused_and_leaves_nothing(build, tmp_path):
    with pytest.raises(CorpusError, match="documents must be a list"):
        build(TEXTS[0], tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_one_text_is_not_added_by_its_characters(model, tokenizer, grown):
    with pytest.raises(CorpusError, match="documents must be a list"):
        knn_logits.add_documents(model, tokenizer, grown, TEXTS[0])
    assert Datastore(grown.folder).manifest == grown.manifest


def test_metadata_that_is_no_json_is_named(build, tmp_path):
    document = Document(TEXTS[0], "d", metadata={("a", "b"): 1})
    with pytest.raises(CorpusError, match="metadata of the document 'd'"):
        build([document], tmp_path / "store")


def test_a_wrong_argument_is_answered_with_the_right_one(build, tmp_path):
    with pytest.raises(ConfigError, match="no argument of build_datastore 'lamda': write lmbda"):
        build(TEXTS, tmp_path / "store", lamda=0.3)
    with pytest.raises(ConfigError, match="no argument of build_datastore 'colour': the names"):
        build(TEXTS, tmp_path / "store", colour=1)
