"""A learned memory: what it learns, what it says, and where it takes a datastore's place."""

import math

import numpy as np
import pytest
import torch
from conftest import TEXTS

import knn_logits
from knn_logits.building.indexing import build_suffixes
from knn_logits.building.removing import compact
from knn_logits.errors import ConfigError, CorpusError, DatastoreError, ModelError
from knn_logits.lab.distilling import distill
from knn_logits.store.job import Job
from knn_logits.store.verification import damage

WINDOW = knn_logits.WindowConfig(64, 32)
# Each document has a text of its own and the text of another document.
CORPUS = [f"{one} {TEXTS[(number + 3 + number // 8) % 8]}" for number, one in enumerate(TEXTS * 2)]


def hashes(store):
    return [file.sha256 for file in store.manifest.files]


@pytest.fixture(scope="module")
def store(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "store"
    return build(CORPUS, folder, window=WINDOW, calibrate=False, license="CC0-1.0")


@pytest.fixture(scope="module")
def learned(model, tokenizer, store, tmp_path_factory):
    """Rows learnt from `TEXTS`. Nothing may change the folder."""
    folder = tmp_path_factory.mktemp("learned") / "rows"
    return distill(model, tokenizer, store, folder, rows=2, epochs=8)


def test_the_folder_holds_rows_and_no_text(store, learned):
    names = {path.name for path in learned.folder.iterdir()} - {".lock"}
    assert names == {
        "checks.safetensors",
        "datastore.json",
        "documents.jsonl",
        "keys-00000.npy",
        "tokens.npy",
    }
    values = learned.values.numpy()
    assert (np.diff(values) >= 0).all()
    record = learned.manifest.learned
    assert record.documents == len(CORPUS)
    assert record.held_out + record.entries == len(store)
    assert len(set(values.tolist())) <= len(learned) <= 2 * len(set(values.tolist()))
    assert learned.manifest.license == "CC0-1.0"
    assert damage(learned.folder, learned.manifest) == []


def test_the_vote_is_a_softmax_over_rows_summed_by_token(model, learned):
    states = torch.randn(3, learned.manifest.dim, generator=torch.Generator().manual_seed(0))
    temperature = 1.7
    memory = knn_logits.Memory(model, learned, k=len(learned), lmbda=0.6, temperature=temperature)
    log_p_lm = torch.log_softmax(torch.randn(3, 384), dim=-1)
    vote = memory.vote(memory.retriever.search(states), log_p_lm)
    rows = torch.from_numpy(learned.keys(np.arange(len(learned))).astype(np.float32))
    weights = torch.softmax(states @ rows.T / temperature, dim=-1)
    p = torch.zeros(3, 384).index_add_(1, learned.values.long(), weights)
    assert torch.allclose(vote.log_p.exp(), 0.6 * p + 0.4 * log_p_lm.exp(), atol=1e-5)


def test_a_trace_names_rows(model, tokenizer, learned):
    inputs = tokenizer(["The crane needs"], return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(model, learned) as knn:
        output = model.generate(
            **inputs, max_new_tokens=6, do_sample=False, pad_token_id=0, logits_processor=[knn]
        )
        trace = knn.trace(output, tokenizer)
    for token in trace.sequences[0].tokens:
        assert math.isclose(
            sum(one.share for one in token.documents), token.influence, abs_tol=1e-5
        )
        for one in token.neighbors:
            assert (one.before, one.after) == ("", "")
            assert one.document == "learned rows"
            assert one.title.startswith("learned row ")
            assert 0 <= one.entry < len(learned)
    assert any(token.neighbors for token in trace.sequences[0].tokens)


def test_what_needs_text_is_refused_in_one_line(model, tokenizer, learned):
    for call in (
        lambda: knn_logits.add_documents(model, tokenizer, learned, ["More text of the town."]),
        lambda: knn_logits.remove_documents(learned, "learned rows"),
        lambda: compact(learned),
        lambda: knn_logits.cluster(learned, 2),
        lambda: knn_logits.build_index(learned, knn_logits.IndexConfig("exact")),
        lambda: build_suffixes(learned),
        lambda: knn_logits.sync_documents(model, tokenizer, learned, ["More text."]),
        lambda: knn_logits.Memory(model, learned, retomaton=True),
        lambda: knn_logits.Memory(model, learned, infini_gram=0.5),
        lambda: distill(model, tokenizer, learned, learned.folder.parent / "again"),
    ):
        with pytest.raises(DatastoreError, match="is a learned memory"):
            call()


def test_an_interrupted_call_is_repeated(model, tokenizer, store, learned, tmp_path, monkeypatch):
    def stop(phase, done, total):
        if phase == "rows" and done > 0:
            raise KeyboardInterrupt

    arguments = {"rows": 2, "epochs": 8}
    with pytest.raises(KeyboardInterrupt):
        distill(model, tokenizer, store, tmp_path / "rows", **arguments, progress=stop)
    with monkeypatch.context() as patch:
        patch.setattr(Job, "commit", lambda *given, **changed: stop("rows", 1, 1))
        with pytest.raises(KeyboardInterrupt):
            distill(model, tokenizer, store, tmp_path / "rows", **arguments)
    done = distill(model, tokenizer, store, tmp_path / "rows", **arguments)
    assert hashes(done) == hashes(learned)


def test_bad_input_is_refused(model, marian, pair_tokenizer, tokenizer, store, build, tmp_path):
    for rows in (0, -1, math.nan, math.inf, "3", True, 2000):
        with pytest.raises(ConfigError, match="rows"):
            distill(model, tokenizer, store, tmp_path / "rows", rows=rows)
    few = build(TEXTS[:1], tmp_path / "few", calibrate=False)
    with pytest.raises(CorpusError, match="needs 256"):
        distill(model, tokenizer, few, tmp_path / "rows")
    with pytest.raises(ModelError, match="causal"):
        distill(marian, pair_tokenizer, store, tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_the_command_line(run, model, tokenizer, store, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    found = run.good(
        "distill", tmp_path / "model", store.folder, "--out", tmp_path / "rows",
        "--rows", 2, "--epochs", 2,
    )  # fmt: skip
    record = knn_logits.Datastore(tmp_path / "rows").manifest.learned
    assert record.perplexity < record.perplexity_lm
    assert f"{record.perplexity_lm:.1f} → {record.perplexity:.1f}" in found.out
