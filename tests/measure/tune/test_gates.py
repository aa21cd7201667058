"""Gates fitted by `tune`: held-out figures against `evaluate`, and the gate in the datastore."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from conftest import TEXTS, pair_documents
from tuned import write_settings

import knn_logits
from knn_logits import (
    ConfidenceSkip,
    ConfigError,
    DamagedError,
    Datastore,
    DistanceGate,
    IndexConfig,
    KNNLogitsProcessor,
    LearnedGate,
    LearnedSkip,
    MetaKGate,
    RescorerGate,
    save_gate,
)
from knn_logits.measure.tune import tuner
from knn_logits.measure.tune.gates import _interval
from knn_logits.mixture.gates.rescorer_fitting import NeighborhoodSample
from knn_logits.mixture.gates.stored import stored_gate
from knn_logits.store.files import write_arrays
from knn_logits.store.job import begin
from knn_logits.store.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("short_training")

DOCUMENTS = [
    f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." * (1 + n % 3) for n in range(9)
]
CURVE = DistanceGate("l2", [1.0, 30.0], [0.9, 0.2])


@pytest.fixture
def copy(store, tmp_path):
    return Datastore(shutil.copytree(store.folder, tmp_path / "copy"))


KINDS = [
    ("distance", None, "learned", DistanceGate),
    ("learned", None, "learned", LearnedGate),
    ("meta-k", None, "learned", MetaKGate),
    ("rescorer", None, "learned", RescorerGate),
    ("learned", 0.4, "learned", LearnedSkip),
    ("meta-k", 0.4, "confidence", ConfidenceSkip),
    ("rescorer", 0.4, "confidence", ConfidenceSkip),
    ("constant", 0.4, "confidence", ConfidenceSkip),
]


@pytest.mark.parametrize(("gate", "skip", "skip_by", "kind"), KINDS)
def test_held_out_figures_are_those_of_evaluate(evaluate, tune, store, gate, skip, skip_by, kind):
    result = tune(store, DOCUMENTS, k=64, gate=gate, skip=skip, skip_by=skip_by)
    found = result.gate
    assert type(found.gate) is kind
    assert result.k >= 16
    held_out = [DOCUMENTS[number] for number in result.held_out_documents]
    settings = {"k": result.k, "temperature": result.temperature}
    gated, constant = (
        evaluate(store, held_out, lmbda=lmbda, **settings) for lmbda in (found.gate, result.lmbda)
    )
    assert found.perplexity == pytest.approx(gated.total.perplexity.interpolated, rel=1e-4)
    assert found.constant == pytest.approx(constant.total.perplexity.interpolated, rel=1e-4)
    assert found.constant == pytest.approx(result.held_out.perplexity, rel=1e-4)
    assert found.lm == pytest.approx(gated.total.perplexity.lm, rel=1e-5)
    assert found.ratio == pytest.approx(found.perplexity / found.constant)
    assert found.interval[0] <= found.ratio <= found.interval[1]
    assert found.skipped == pytest.approx(gated.searches_saved / gated.total.tokens)
    assert (found.skipped > 0) == (skip is not None)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["gate"]["perplexity"] == found.perplexity


@pytest.mark.parametrize(
    "how", ["two datastores", "passages are followed", "few entries", "merged"]
)
def test_a_rescorer_of_other_neighbors(build, evaluate, tune, store, copy, how):
    """Bonuses, several datastores and rows of fewer neighbors than k are as in evaluation."""
    given = [store, copy] if how == "two datastores" else store
    if how == "merged":
        given = knn_logits.merge_entries(copy, 0.9)
    if how == "few entries":
        given = build(TEXTS[:1], copy.folder.parent / "few")
    more = {"retomaton": True, "pointer_weight": 20.0} if how == "passages are followed" else {}
    result = tune(given, DOCUMENTS[:2], k=16, gate="rescorer", **more)
    held_out = [DOCUMENTS[number] for number in result.held_out_documents]
    more |= {"k": result.k, "temperature": result.temperature, "lmbda": result.gate.gate}
    found = evaluate(given, held_out, **more)
    assert result.gate.perplexity == pytest.approx(found.total.perplexity.interpolated, rel=1e-4)


def test_a_rescorer_for_pairs(marian, pair_tokenizer, pair_store):
    result = knn_logits.tune(
        marian, pair_tokenizer, pair_store, pair_documents(), k=16, gate="rescorer"
    )
    held_out = [pair_documents()[number] for number in result.held_out_documents]
    more = {"k": result.k, "temperature": result.temperature, "lmbda": result.gate.gate}
    found = knn_logits.evaluate(marian, pair_tokenizer, pair_store, held_out, **more)
    assert result.gate.perplexity == pytest.approx(found.total.perplexity.interpolated, rel=1e-4)


def test_a_rescorer_of_a_long_text_is_fitted_and_judged_on_a_sample(tune, store, monkeypatch):
    def tuned():
        return tune(store, DOCUMENTS[:4], k=16, gate="rescorer")

    whole = tuned()
    assert whole.gate.tokens == whole.held_out.tokens
    # Room for forty tokens of sixteen neighbors.
    init = partial(NeighborhoodSample.__init__, most_bytes=40 * 160)
    monkeypatch.setattr(NeighborhoodSample, "__init__", lambda *given: init(*given))
    one, again = tuned(), tuned()
    assert one.gate.tokens == 40 < one.held_out.tokens == whole.held_out.tokens
    assert one.held_out == whole.held_out
    assert one.gate.perplexity == again.gate.perplexity
    assert one.gate.constant != pytest.approx(whole.gate.constant, rel=1e-6)


def test_a_gate_does_not_change_what_else_is_chosen(tune, store):
    plain = tune(store, DOCUMENTS, k=16)
    gated = tune(store, DOCUMENTS, k=16, gate="distance")
    assert gated.gate is not None
    assert plain.gate is None
    assert gated.k == 16
    there = plain.grid.ks.index(16)
    assert gated.chosen_on.perplexity == pytest.approx(float(plain.perplexities[there].min()))


def test_the_interval_against_loops():
    random = np.random.default_rng(3)
    documents = random.integers(0, 5, 400)
    differences = random.standard_normal(400)
    low, high = _interval(differences, documents, 2000, 0)
    means = []
    for _ in range(2000):
        drawn = random.integers(0, 5, 5)
        tokens = np.concatenate([differences[documents == one] for one in drawn])
        means.append(tokens.mean())
    expected = np.exp(np.quantile(means, [0.025, 0.975]))
    np.testing.assert_allclose([low, high], expected, rtol=0.03)
    assert _interval(differences, np.zeros(400, int), 100, 0) is None


def test_a_gate_in_the_datastore_is_used_where_no_number_is_given(model, tokenizer, tune, copy):
    result = tune(copy, DOCUMENTS, k=64, gate="learned", skip=0.3, write=True, force=True)
    store = Datastore(copy.folder)
    assert store.manifest.settings.calibrated
    settings = {"k": result.k, "temperature": result.temperature}
    for lmbda in (None, 0.3):
        given = {"lmbda": result.gate.gate if lmbda is None else lmbda, **settings}
        own, same = (
            knn_logits.evaluate(model, tokenizer, where, TEXTS, **more)
            for where, more in ((store, {"lmbda": lmbda}), (copy, given))
        )
        assert own.searches == same.searches
        assert own.total.perplexity == same.total.perplexity
        one, other = (
            knn_logits.explain(model, tokenizer, where, TEXTS[0], **more)
            for where, more in ((store, {"lmbda": lmbda}), (copy, given))
        )
        assert one[0].tokens == other[0].tokens or str(copy.name) == store.name
        assert [t.p for t in one[0].tokens] == [t.p for t in other[0].tokens]
    with KNNLogitsProcessor(model, store) as knn:
        assert knn.gate is not None
    with KNNLogitsProcessor(model, store, lmbda=0.2) as knn:
        assert knn.gate is None
    again = tune(store, DOCUMENTS, k=64, gate="learned", skip=0.3)
    assert again.gate.perplexity == pytest.approx(result.gate.perplexity)
    assert again.held_out.lm == pytest.approx(result.held_out.lm)


def test_what_changes_a_datastore_keeps_its_gate(model, tokenizer, copy):
    write_settings(copy, 16, 0.3, 5.0, CURVE)
    folder = copy.folder

    def state():
        store = Datastore(folder, full=True)
        assert not [path for path in folder.iterdir() if "partial" in path.name]
        assert len(list(folder.glob("gate*"))) == (stored_gate(store) is not None)
        gate = stored_gate(store)
        return gate and gate.lmbdas.tolist(), store.manifest.settings.stale

    curve = CURVE.lmbdas.tolist()
    assert state() == (curve, False)
    knn_logits.cluster(folder, 5)
    assert state() == (curve, False)
    knn_logits.add_documents(model, tokenizer, folder, [TEXTS[0] + " Once more."])
    assert state() == (curve, True)
    assert Datastore(folder).clusters is None
    write_settings(Datastore(folder), 16, 0.3, 5.0, CURVE)
    assert state() == (curve, False)
    knn_logits.remove_documents(folder, ["2"])
    knn_logits.compact(folder)
    assert state() == (curve, True)
    write_settings(Datastore(folder), 16, 0.3, 5.0, CURVE)
    knn_logits.build_index(Datastore(folder), IndexConfig("IVF4,SQ8"))
    assert state() == (curve, True)
    knn_logits.build_index(Datastore(folder), IndexConfig("exact", metric="cosine"))
    assert state() == (None, True)


def test_plain_settings_take_a_gate_away(copy):
    write_settings(copy, 16, 0.3, 5.0, CURVE)
    write_settings(copy, 16, 0.4, 5.0, ConfidenceSkip(0.2, 0.7))
    assert stored_gate(Datastore(copy.folder)).limit == pytest.approx(0.7)
    write_settings(copy, 16, 0.5, 5.0)
    store = Datastore(copy.folder)
    assert stored_gate(store) is None
    assert store.manifest.settings.lmbda == 0.5
    assert not list(copy.folder.glob("gate*"))


def test_settings_without_a_gate_leave_the_stored_one(tune, copy, monkeypatch):
    told = []
    monkeypatch.setattr(tuner.logger, "warning", lambda *parts: told.append(parts[0]))
    write_settings(copy, 16, 0.3, 5.0, CURVE)
    settings = {"k": 8, "write": True, "force": True, "allow_overlap": True}
    chosen = tune(copy.folder, DOCUMENTS, **settings)
    store = Datastore(copy.folder, full=True)
    assert stored_gate(store).lmbdas.tolist() == CURVE.lmbdas.tolist()
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
    notes = {"gate": "distance", "version": "1", "metric": "l2"}
    curve = CURVE.to_arrays()
    for arrays, changed, message in (
        (curve | {"lmbdas": np.full(2, 7.0, np.float32)}, {}, "is not a gate"),
        (curve, {"gate": "unknown"}, "is not a gate"),
        (curve, {"metric": "cosine"}, "fitted for the metric cosine"),
        (curve | {"lmbdas": np.full(2, np.nan, np.float32)}, {}, "not belong in a gate"),
        ({"middles": np.zeros(2, np.int64)}, {}, "not belong in a gate"),
        ({"middles": np.zeros(1 << 19, np.float32)}, {}, "too large"),
    ):
        foreign(copy.folder, arrays, notes | changed)
        with pytest.raises(DamagedError, match=message):
            KNNLogitsProcessor(model, copy.folder)
    write_settings(copy, 16, 0.3, 5.0, CURVE)
    (path,) = copy.folder.glob("gate*")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="SHA-256"):
        Datastore(copy.folder, full=True)


def test_what_cannot_be_fitted_is_refused(tune, store):
    for settings, message in (
        ({"gate": "other"}, "must be one of"),
        ({"skip": 0.5}, "needs a gate"),
        ({"gate": "constant"}, "tuned anyway"),
        ({"gate": "learned", "skip": 1.0}, "below 1"),
        ({"gate": "learned", "skip": 0.5, "skip_by": "chance"}, "skips by one of"),
    ):
        with pytest.raises(ConfigError, match=message):
            tune(store, DOCUMENTS, **settings)


def test_a_gate_from_a_file(run, model_folder, copy, tmp_path):
    path = tmp_path / "g.safetensors"
    save_gate(ConfidenceSkip(CURVE, 0.045), path)
    text = tmp_path / "t.txt"
    text.write_text(TEXTS[3])
    found = run.good("eval", model_folder, copy.folder, text, "--gate", path, "--json")
    assert found.json["settings"]["lmbda"] == "distance, skips by confidence"
    assert found.json["searches_saved"] > 0
    found = run("explain", model_folder, copy.folder, TEXTS[3], "--gate", path, "--json")
    assert "skipped" in [token["retrieval"] for token in found.json["tokens"]]
    found = run("generate", model_folder, copy.folder, "--prompt", "In", "--gate", path, "--json")
    assert found.json["gate"] == "distance, skips by confidence"
    both = ("--gate", path, "--lmbda", 0.5)
    found = run("eval", model_folder, copy.folder, text, *both)
    assert (found.code, "remove --lmbda" in found.err) == (1, True)
    found = run("eval", model_folder, copy.folder, text, "--gate", text)
    assert (found.code, "knn-logits: " in found.err) == (1, True)


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
    found = run.good(*command, "--gate", "learned", "--skip", 0.3, "--write", "--force", "--json")
    gate = found.json["gate"]
    assert set(gate) >= {"kind", "perplexity", "perplexity_constant", "ratio", "interval"}
    assert 0.0 < gate["skipped"] < 1.0
    assert run("info", copy.folder, "--json").json["gate"] == gate["kind"]
    assert "learned, skips by learned" in run("info", copy.folder).out
    run.good("verify", copy.folder, "--full")
    found = run("eval", model_folder, copy.folder, text, "--json")
    assert found.json["searches_saved"] > 0
    found = run("eval", model_folder, copy.folder, text, "--lmbda", 0.4, "--json")
    assert found.json["searches_saved"] == 0
    people = run(*command, "--gate", "distance", "--write", "--force")
    assert "of the best number's" in people.out
    assert run("info", copy.folder, "--json").json["gate"] == "distance"
    chosen = run(*command, "--gate", "meta-k", "--write", "--force", "--json").json
    assert chosen["k"] == 32
    assert run("info", copy.folder, "--json").json["gate"] == "meta-k"
    run.good("verify", copy.folder, "--full")
    check_use(run, model_folder, copy.folder, text, "meta-k")
    run.refused(*command, "--skip", 0.3)
    plain = run(*command, "--write", "--force")
    assert (plain.code, "--gate none" in plain.err) == (0, True), plain.err
    assert run("info", copy.folder, "--json").json["gate"] == "meta-k"
    assert "--gate none" not in run(*command, "--gate", "none", "--write", "--force").err
    assert run("info", copy.folder, "--json").json["gate"] is None


def test_the_command_with_a_rescorer(run, model_folder, copy, tmp_path):
    text = tmp_path / "t.jsonl"
    text.write_text("".join(json.dumps({"text": one}) + "\n" for one in DOCUMENTS[:4]))
    command = ("tune", model_folder, copy.folder, text, "--k", 16, "--gate", "rescorer")
    chosen = run(*command, "--write", "--force", "--json").json
    assert (chosen["k"], chosen["gate"]["kind"]) == (16, "rescorer")
    run.good("verify", copy.folder, "--full")
    assert run("info", copy.folder, "--json").json["gate"] == "rescorer"
    check_use(run, model_folder, copy.folder, text, "rescorer")
