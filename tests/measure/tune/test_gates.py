"""Gates fitted by `tune`: held-out figures against `evaluate`, and the gate in the datastore."""

import json
import shutil

import numpy as np
import pytest
from conftest import TEXTS
from gate_cases import random_meta_k
from tuned import write_settings

import knn_logits
from knn_logits import Datastore, IndexConfig, KNNLogitsProcessor, MetaKGate
from knn_logits.building.removing import compact
from knn_logits.errors import DamagedError
from knn_logits.measure.tune import tuner
from knn_logits.mixture.gates.stored import stored_gate
from knn_logits.store.files import write_arrays
from knn_logits.store.job import begin
from knn_logits.store.manifest import read_manifest
from knn_logits.store.records import GateRecord

pytestmark = pytest.mark.usefixtures("short_training")

DOCUMENTS = [
    f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." * (1 + n % 3) for n in range(9)
]
GATE = random_meta_k()


@pytest.fixture
def copy(store, tmp_path):
    return Datastore(shutil.copytree(store.folder, tmp_path / "copy"))


def test_held_out_figures_are_those_of_evaluate(evaluate, tune, store):
    result = tune(store, DOCUMENTS, k=64, gate="meta-k")
    found = result.gate
    assert type(found.gate) is MetaKGate
    assert result.k == 64
    held_out = [DOCUMENTS[number] for number in result.held_out_documents]
    settings = {"k": result.k, "temperature": result.temperature}
    gated, constant = (
        evaluate(store, held_out, lmbda=lmbda, **settings) for lmbda in (found.gate, result.lmbda)
    )
    assert found.perplexity == pytest.approx(gated.total.perplexity.interpolated, rel=1e-4)
    assert found.constant == pytest.approx(constant.total.perplexity.interpolated, rel=1e-4)
    assert found.constant == pytest.approx(result.held_out.perplexity, rel=1e-4)
    assert found.lm == pytest.approx(gated.total.perplexity.lm, rel=1e-5)
    assert found.verdict.ratio == pytest.approx(found.perplexity / found.constant)
    assert found.verdict.tokens == result.held_out.tokens
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["gate"]["perplexity"] == found.perplexity


@pytest.mark.parametrize("how", ["passages are followed", "few entries"])
def test_a_gate_of_other_neighbors(build, evaluate, tune, store, copy, how):
    """Bonuses and rows of fewer neighbors than k are as in evaluation."""
    given = store
    if how == "few entries":
        given = build(TEXTS[:1], copy.folder.parent / "few")
    more = {"retomaton": True, "pointer_weight": 20.0} if how == "passages are followed" else {}
    result = tune(given, DOCUMENTS[:2], k=16, gate="meta-k", **more)
    held_out = [DOCUMENTS[number] for number in result.held_out_documents]
    more |= {"k": result.k, "temperature": result.temperature, "lmbda": result.gate.gate}
    found = evaluate(given, held_out, **more)
    assert result.gate.perplexity == pytest.approx(found.total.perplexity.interpolated, rel=1e-4)


def test_what_changes_a_datastore_keeps_its_gate(model, tokenizer, copy):
    write_settings(copy, 16, 0.3, 5.0, GATE)
    folder = copy.folder

    def state():
        store = Datastore(folder, full=True)
        assert not [path for path in folder.iterdir() if "partial" in path.name]
        assert len(list(folder.glob("gate*"))) == (stored_gate(store) is not None)
        gate = stored_gate(store)
        return gate and gate.to_arrays()["out"].tolist(), store.manifest.settings.stale

    kept = GATE.to_arrays()["out"].tolist()
    assert state() == (kept, False)
    knn_logits.cluster(folder, 5)
    assert state() == (kept, False)
    knn_logits.add_documents(model, tokenizer, folder, [TEXTS[0] + " Once more."])
    assert state() == (kept, True)
    assert Datastore(folder).clusters is None
    write_settings(Datastore(folder), 16, 0.3, 5.0, GATE)
    assert state() == (kept, False)
    knn_logits.remove_documents(folder, ["2"])
    compact(folder)
    assert state() == (kept, True)
    write_settings(Datastore(folder), 16, 0.3, 5.0, GATE)
    knn_logits.build_index(Datastore(folder), IndexConfig("IVF4,SQ8"))
    assert state() == (kept, True)
    knn_logits.build_index(Datastore(folder), IndexConfig("exact", metric="cosine"))
    assert state() == (None, True)


def test_plain_settings_take_a_gate_away(copy):
    write_settings(copy, 16, 0.3, 5.0, GATE)
    write_settings(copy, 16, 0.4, 5.0, random_meta_k(ks=(1, 2)))
    assert stored_gate(Datastore(copy.folder)).ks == (1, 2)
    # That a build fitted a gate is no longer so.
    record = GateRecord(kind="adaptive", tokens=9, gain=0.1, kept=1.0, followed=0.5)
    read_manifest(copy.folder).model_copy(update={"gate": record}).write(copy.folder)
    write_settings(copy, 16, 0.5, 5.0)
    store = Datastore(copy.folder)
    assert stored_gate(store) is store.manifest.gate is None
    assert store.manifest.settings.lmbda == 0.5
    assert not list(copy.folder.glob("gate*"))


def test_tuned_settings_keep_the_size_of_loops(tune, copy):
    settings = copy.manifest.settings.model_copy(update={"no_repeat_ngram_size": 7})
    copy.manifest.model_copy(update={"settings": settings}).write(copy.folder)
    tune(copy.folder, DOCUMENTS, k=8, write=True, force=True, allow_overlap=True)
    store = Datastore(copy.folder)
    assert store.manifest.settings.tuned
    assert store.manifest.settings.no_repeat_ngram_size == 7


def test_settings_without_a_gate_leave_the_stored_one(tune, copy, monkeypatch):
    told = []
    monkeypatch.setattr(tuner.logger, "warning", lambda *parts: told.append(parts[0]))
    write_settings(copy, 16, 0.3, 5.0, GATE)
    settings = {"k": 8, "write": True, "force": True, "allow_overlap": True}
    chosen = tune(copy.folder, DOCUMENTS, **settings)
    store = Datastore(copy.folder, full=True)
    assert stored_gate(store).ks == GATE.ks
    assert store.manifest.settings.lmbda == chosen.lmbda
    assert ["keeps its gate" in one for one in told] == [True]
    tune(store, DOCUMENTS, gate="none", **settings)
    assert stored_gate(Datastore(copy.folder, full=True)) is None
    assert len(told) == 1


def foreign(folder, arrays, metadata):
    """A datastore whose publisher noted a file as its gate."""
    with begin(folder, "tune", {}) as job:
        manifest = read_manifest(folder)
        write_arrays(job.path("gate"), arrays, metadata)
        job.note(job.path("gate"))
        job.commit(manifest)


def test_a_gate_that_is_none_is_refused(model, copy):
    notes = {"gate": "meta-k", "version": "1", "metric": "l2"}
    good, mean = GATE.to_arrays(), GATE.to_arrays()["mean"]
    for arrays, changed, message in (
        (good | {"scale": np.zeros_like(mean)}, {}, "is not a gate"),
        (good, {"gate": "unknown"}, "is not a gate"),
        (good, {"metric": "cosine"}, "fitted for the metric cosine"),
        (good | {"mean": np.full_like(mean, np.nan)}, {}, "not belong in a gate"),
        ({"mean": np.zeros(2, np.int64)}, {}, "not belong in a gate"),
        ({"mean": np.zeros(1 << 19, np.float32)}, {}, "too large"),
    ):
        foreign(copy.folder, arrays, notes | changed)
        with pytest.raises(DamagedError, match=message):
            KNNLogitsProcessor(model, copy.folder)
    write_settings(copy, 16, 0.3, 5.0, GATE)
    (path,) = copy.folder.glob("gate*")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="SHA-256"):
        Datastore(copy.folder, full=True)


def check_use(run, model_folder, folder, text, kind):
    """The commands that score, explain and write text use the gate that a datastore keeps."""
    found = run("eval", model_folder, folder, text, "--json")
    assert found.json["settings"]["lmbda"] == kind
    found = run("explain", model_folder, folder, TEXTS[3], "--json")
    assert all("influence" in token for token in found.json["tokens"])
    found = run("generate", model_folder, folder, "--prompt", "In", "--json")
    assert found.json["gate"] == kind


def test_the_command(run, model_folder, copy, tmp_path):
    text = tmp_path / "t.jsonl"
    text.write_text("".join(json.dumps({"text": one}) + "\n" for one in DOCUMENTS))
    command = ("tune", model_folder, copy.folder, text, "--k", 32)
    found = run.good(*command, "--gate", "meta-k", "--write", "--force", "--json")
    assert found.json["k"] == 32
    assert set(found.json["gate"]) >= {"kind", "perplexity", "perplexity_constant", "verdict"}
    assert run("info", copy.folder, "--json").json["gate"] == {"kind": "meta-k"}
    run.good("verify", copy.folder)
    check_use(run, model_folder, copy.folder, text, "meta-k")
    people = run.good(*command, "--gate", "meta-k")
    assert "of the best number's" in people.out
    plain = run(*command, "--write", "--force")
    assert (plain.code, "--gate none" in plain.err) == (0, True), plain.err
    assert run("info", copy.folder, "--json").json["gate"] == {"kind": "meta-k"}
    assert "--gate none" not in run(*command, "--gate", "none", "--write", "--force").err
    assert run("info", copy.folder, "--json").json["gate"] is None
