"""Datastores of pairs that are wrong, and what belongs to another kind of model."""

import json

import pytest
import torch
from conftest import PAIRS, pair_documents
from folders import change, one_line, refit

import knn_logits
from knn_logits import KNNLogitsError
from knn_logits.errors import ConfigError, DamagedError, DatastoreError
from knn_logits.store import layout
from knn_logits.store.manifest import read_manifest
from knn_logits.store.verification import damage


def with_rows(folder, change):
    path = folder / layout.DOCUMENTS
    rows = [change(json.loads(line)) for line in path.read_bytes().splitlines()]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    refit(folder)


ROWS = {
    "no sources": lambda row: row[:-1],
    "numbers": lambda row: [*row[:-1], 5],
    "one more": lambda row: [*row, row[-1]],
}


@pytest.mark.parametrize("wrong", ROWS)
def test_sources_that_are_missing_or_wrong(pair_copy, wrong):
    with_rows(pair_copy, ROWS[wrong])
    with pytest.raises(DamagedError) as caught:
        knn_logits.Datastore(pair_copy)
    one_line(caught)


PAIRS_FIELDS = {
    "null": None,
    "a field more": {"source_prefix": "", "path": "/etc/passwd"},
    "a language that is a list": {"target_lang": ["de"]},
}


@pytest.mark.parametrize("wrong", PAIRS_FIELDS)
def test_a_manifest_whose_pairs_were_edited(pair_copy, wrong):
    change(pair_copy, pairs=PAIRS_FIELDS[wrong])
    with pytest.raises(KNNLogitsError) as caught:
        knn_logits.Datastore(pair_copy)
    one_line(caught)


def test_a_store_without_sources_generates_and_does_not_grow(
    marian, pair_tokenizer, pair_store, pair_copy
):
    """As an imported one is."""
    with_rows(pair_copy, ROWS["no sources"])
    change(pair_copy, pairs=None)
    batch = pair_tokenizer([PAIRS[0][0]], return_tensors="pt")
    outputs = []
    for one in (pair_copy, pair_store):
        with knn_logits.KNNLogitsProcessor(marian, one) as knn:
            outputs.append(marian.generate(**batch, logits_processor=[knn], max_new_tokens=9))
            assert len(knn.trace(outputs[-1], pair_tokenizer)) == 1
    assert torch.equal(*outputs)
    with pytest.raises(DatastoreError, match="imported without its sources") as caught:
        knn_logits.add_documents(marian, pair_tokenizer, pair_copy, pair_documents())
    one_line(caught)
    assert not damage(pair_copy, read_manifest(pair_copy))


def test_retomaton_is_for_causal_models(marian, pair_store):
    with pytest.raises(ConfigError, match="RetoMaton needs a causal model"):
        knn_logits.Memory(marian, pair_store, retomaton=True)
    with pytest.raises(ConfigError, match="clusters are for RetoMaton"):
        knn_logits.cluster(pair_store, 2)
