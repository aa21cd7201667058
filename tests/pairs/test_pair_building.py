"""Datastores of pairs: what is in them, and builds that were stopped."""

import dataclasses

import numpy as np
import pytest
import torch
from building import MANY, SETTINGS, SMALL, builder
from conftest import PAIRS, pair_documents
from folders import contents, one_line
from interrupted import Stop, stopping
from languages import FAMILIES, model_of

import knn_logits
from knn_logits import Document, WindowConfig
from knn_logits.errors import MismatchError


@pytest.fixture
def build(marian, pair_tokenizer, tmp_path):
    return builder(marian, pair_tokenizer, tmp_path)


def test_every_token_of_a_target_is_an_entry_with_its_source(marian, pair_tokenizer, pair_store):
    expected = [token for _, target in PAIRS for token in pair_tokenizer(target)["input_ids"]]
    assert pair_store.values.tolist() == expected
    documents = pair_store.documents
    assert [documents[n].source for n in range(8)] == [source for source, _ in PAIRS]
    assert documents.sources([3, 0, 3]) == [PAIRS[3][0], PAIRS[0][0], PAIRS[3][0]]
    entry = 0
    for source, target in PAIRS:
        ids = pair_tokenizer(target)["input_ids"]
        with torch.no_grad():
            seen = marian(
                input_ids=torch.tensor([pair_tokenizer(source)["input_ids"]]),
                decoder_input_ids=torch.tensor([[1, *ids[:-1]]]),
                output_hidden_states=True,
            )
        keys = pair_store.keys(np.arange(entry, entry + len(ids))).astype(np.float32)
        # The feed-forward network's output is added to its input, and normalised.
        layer = marian.model.decoder.layers[-1]
        given_out = torch.from_numpy(keys)
        inner = layer.fc2(layer.activation_fn(layer.fc1(given_out)))
        out = layer.final_layer_norm(given_out + inner)
        assert torch.allclose(out, seen.decoder_hidden_states[-1][0], atol=2e-2)
        entry += len(ids)


def test_a_target_longer_than_the_window_is_read_in_parts(marian, pair_tokenizer, build):
    target = " ".join(target for _, target in PAIRS)
    store = build(
        documents=[Document(target, source=PAIRS[0][0], id="long"), *pair_documents()],
        window=WindowConfig(16, 8),
    )
    ids = [1, *pair_tokenizer(target)["input_ids"]]
    assert len(ids) > 64
    assert store.values.tolist()[: len(ids) - 1] == ids[1:]
    trace = knn_logits.explain(
        marian, pair_tokenizer, store, target, source=PAIRS[0][0], k=1, lmbda=0.5
    )
    (sequence,) = trace
    assert [token.token_id for token in sequence.tokens] == ids[1:]
    # Read in the same windows, each token finds itself.
    assert [token.neighbors[0].document for token in sequence.tokens] == ["long"] * (len(ids) - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_languages_are_kept_and_used(family, tmp_path):
    make, english, german, _ = FAMILIES[family]
    tokenizer = make()
    model = model_of(tokenizer)
    own = {"source_lang": english, "target_lang": german}
    store = knn_logits.build_datastore(
        model, tokenizer, pair_documents(), tmp_path / "s", **own, **SETTINGS
    )
    assert store.manifest.pairs.model_dump() == {"source_prefix": "", **own}
    (written,) = knn_logits.translate(
        model, tokenizer, [PAIRS[1][0]], store, k=1, lmbda=0.999, num_beams=2
    )
    assert written == PAIRS[1][1].replace("-", "")
    other = make()
    other.src_lang, other.tgt_lang = english, german
    again = knn_logits.build_datastore(
        model, other, pair_documents(), tmp_path / "again", **SETTINGS
    )
    assert again.manifest.pairs == store.manifest.pairs
    assert again.values.tolist() == store.values.tolist()
    np.testing.assert_array_equal(again.keys(np.arange(9)), store.keys(np.arange(9)))


def test_a_prefix_is_read_before_every_source(marian, pair_tokenizer, build):
    prefix = "translate English to German: "
    store = build("a", source_prefix=prefix)
    written = [dataclasses.replace(one, source=prefix + one.source) for one in pair_documents()]
    same = build("b", documents=written)
    np.testing.assert_array_equal(
        store.keys(np.arange(len(store))), same.keys(np.arange(len(same)))
    )
    assert store.documents[0].source == PAIRS[0][0]
    trace = knn_logits.explain(marian, pair_tokenizer, store, PAIRS[2][1], source=PAIRS[2][0], k=1)
    assert all(token.neighbors[0].document == "p2" for token in trace[0].tokens)


# Resumed


@pytest.mark.parametrize("at", [1, 300, 700])
def test_a_build_that_was_stopped_ends_with_the_same_bytes(build, monkeypatch, at):
    monkeypatch.setattr("knn_logits.engine.windows._BUFFER_BYTES", 1024)
    expected = contents(build("whole", MANY, **SMALL).folder)
    for phase, done in (("keys", at), ("tokens", 200), ("keys", at + 200)):
        with pytest.raises(Stop):
            build("s", MANY, **SMALL, progress=stopping(done, phase))
    assert contents(build("s", MANY, **SMALL).folder) == expected


CHANGES = {
    "prefix": {"source_prefix": "summarize: "},
    "sources swapped": {
        "documents": [
            dataclasses.replace(one, source=other.source)
            for one, other in zip(MANY, [MANY[1], MANY[0], *MANY[2:]], strict=True)
        ]
    },
}


@pytest.mark.parametrize("changed", CHANGES)
def test_another_plan_or_text_is_refused_on_resume(build, monkeypatch, changed):
    monkeypatch.setattr("knn_logits.engine.windows._BUFFER_BYTES", 1024)
    with pytest.raises(Stop):
        build("s", MANY, **SMALL, progress=stopping(300))
    options = {"documents": MANY} | CHANGES[changed]
    with pytest.raises(MismatchError) as caught:
        build("s", **options, **SMALL)
    one_line(caught)
    assert len(build("s", **options, **SMALL, overwrite=True)) > 300
