"""Settings chosen on one half of a text, what they are worth on the other, and what is stored."""

import json

import numpy as np
import pytest
from conftest import TEXTS
from gate_cases import random_adaptive, random_meta_k
from tuned import write_settings

import knn_logits
from knn_logits import Datastore, IndexConfig, KNNLogitsProcessor, Memory, MetaKGate
from knn_logits.building.removing import compact
from knn_logits.errors import ConfigError, CorpusError, DamagedError
from knn_logits.mixture.presets import stored_gate
from knn_logits.store.files import write_arrays
from knn_logits.store.job import begin
from knn_logits.store.manifest import read_manifest
from knn_logits.store.records import GateRecord

pytestmark = pytest.mark.usefixtures("short_training")

DOCUMENTS = [
    f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." * (1 + n % 3) for n in range(9)
]
# The documents that `tune` holds out of nine.
HELD_OUT = [
    text
    for text, number in zip(DOCUMENTS, np.random.default_rng(0).permutation(9), strict=True)
    if number % 2
]
GATE = random_meta_k()


@pytest.fixture(scope="module")
def result(tune, store):
    return tune(store, DOCUMENTS, k=64, allow_overlap=True)


@pytest.fixture
def copy(copied):
    return Datastore(copied)


def chosen(settings):
    return {name: getattr(settings, name) for name in ("k", "lmbda", "temperature")}


def test_both_halves_have_the_perplexity_that_evaluate_gives(evaluate, store, result):
    first = [text for text in DOCUMENTS if text not in HELD_OUT]
    for part, documents in ((result.chosen_on, first), (result.held_out, HELD_OUT)):
        found = evaluate(store, documents, **chosen(result.chosen))
        assert found.tokens == part.tokens
        assert found.perplexity.lm == pytest.approx(part.lm, rel=1e-5)
        assert found.perplexity.interpolated == pytest.approx(part.perplexity, rel=1e-4)
        own = evaluate(store, documents)
        assert own.perplexity.interpolated == pytest.approx(part.before, rel=1e-4)
    # Nothing that was tried is better than the choice.
    for change in ({"k": 8}, {"lmbda": 0.2}, {"temperature": 2.0}):
        other = evaluate(store, first, **(chosen(result.chosen) | change))
        assert other.perplexity.interpolated >= result.chosen_on.perplexity * 0.9999
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["settings_tried"] == result.grid.settings > 1000
    assert content["perplexity"] == result.held_out.perplexity


def test_batches_change_nothing(tune, store, result):
    small = tune(store, DOCUMENTS, k=64, batch_tokens=1)
    assert chosen(small.chosen) == pytest.approx(chosen(result.chosen))
    assert small.held_out.lm == pytest.approx(result.held_out.lm, rel=1e-6)


def test_no_k_is_claimed_that_was_not_searched(tune, store):
    found = tune(store, DOCUMENTS, k=6)
    assert found.grid.ks == (1, 2, 4, 6)  # the datastore's own is 16
    assert 16 in tune(store, DOCUMENTS, k=24).grid.ks


def test_a_single_document_is_cut_in_the_middle(tune, store):
    found = tune(store, [" ".join(DOCUMENTS)], k=16)
    assert 0.8 < found.chosen_on.tokens / found.held_out.tokens < 1.25


def test_a_suffix_weight_that_is_given_is_part_of_the_choice(evaluate, tune, store):
    found = tune(store, DOCUMENTS, k=16, suffix_weight=4.0)
    assert found.chosen.suffix_weight == 4.0
    other = evaluate(store, HELD_OUT, suffix_weight=4.0, **chosen(found.chosen))
    assert found.held_out.perplexity == pytest.approx(other.perplexity.interpolated, rel=1e-4)
    # A memory of the papers has none.
    assert tune(Memory.of(tune.args[0], store, preset="paper"), DOCUMENTS).chosen.suffix_weight == 1


@pytest.mark.parametrize("documents", [[], ["a"], ["ab"], ["The harbour", "x"]])
def test_too_little_text_is_refused(tune, store, documents):
    with pytest.raises(CorpusError, match="dozens of documents"):
        tune(store, documents, k=4)


def test_what_cannot_be_tuned_is_refused(tune, store):
    with pytest.raises(ConfigError, match="no datastore"):
        tune([], DOCUMENTS)
    with pytest.raises(ConfigError, match="each datastore separately"):
        tune([store, store], DOCUMENTS)
    with pytest.raises(ConfigError, match="k must be"):
        tune(store, DOCUMENTS, k=-1)
    with pytest.raises(ConfigError, match="the gate must be meta-k"):
        tune(store, DOCUMENTS, gate="adaptive")


# Gates


@pytest.mark.parametrize("how", ["plain", "passages are followed", "few entries"])
def test_a_gate_has_the_perplexity_that_evaluate_gives(build, evaluate, tune, store, tmp_path, how):
    """Bonuses and rows of fewer neighbors than k are as in evaluation."""
    given = build(TEXTS[:1], tmp_path / "few") if how == "few entries" else store
    more = {"retomaton": True, "pointer_weight": 20.0} if how == "passages are followed" else {}
    result = tune(given, DOCUMENTS, k=16, gate="meta-k", **more)
    assert type(result.gate) is MetaKGate
    assert result.chosen.k == result.grid.ks[-1]
    more |= {**chosen(result.chosen), "lmbda": result.gate}
    found = evaluate(given, HELD_OUT, **more)
    assert result.gate_perplexity == pytest.approx(found.perplexity.interpolated, rel=1e-4)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["gate"] == {"kind": "meta-k", "perplexity": result.gate_perplexity}


@pytest.mark.parametrize("gate", [None, "meta-k"])
def test_what_was_tuned_is_used_and_not_the_gate_that_was_there(evaluate, tune, copy, gate):
    write_settings(copy, 16, 0.3, 5.0, random_adaptive())
    record = GateRecord(kind="adaptive", tokens=9, gain=0.1, kept=1.0, followed=0.5)
    settings = copy.manifest.settings.model_copy(update={"no_repeat_ngram_size": 7})
    changed = {"gate": record, "settings": settings}
    read_manifest(copy.folder).model_copy(update=changed).write(copy.folder)
    found = tune(copy.folder, DOCUMENTS, k=32, gate=gate, write=True, allow_overlap=True)
    store = Datastore(copy.folder)
    settings = store.manifest.settings
    assert chosen(settings) == chosen(found.chosen)
    assert settings.calibrated
    assert settings.tuned
    assert settings.no_repeat_ngram_size == 7
    assert store.manifest.gate is None
    assert len(list(copy.folder.glob("gate*"))) == (gate is not None)
    used = evaluate(store, HELD_OUT)
    assert used.settings["lmbda"] == (gate or found.chosen.lmbda)
    expected = found.held_out.perplexity if gate is None else found.gate_perplexity
    assert used.perplexity.interpolated == pytest.approx(expected, rel=1e-4)


def test_a_stored_text_is_not_tuned_on(tune, copied, caplog):
    before = Datastore(copied).manifest
    with pytest.raises(CorpusError, match=r"all of the text's tokens.* --allow-overlap"):
        tune(copied, TEXTS, k=8, write=True)
    assert Datastore(copied).manifest == before
    assert tune(copied, TEXTS, k=8).overlap == 1.0
    assert "worse on other text" in caplog.text


def test_a_choice_that_does_worse_on_the_held_out_half_is_not_stored(tune, copy):
    write_settings(copy, 16, 0.01, 5.0)
    before = Datastore(copy.folder).manifest
    texts = [TEXTS[1], "Nobody in our village sells bread, but two shops sell fresh fish."]
    with pytest.raises(CorpusError, match=r"perplexity is .* so the choice was not stored"):
        tune(copy.folder, texts, k=8, write=True, allow_overlap=True)
    assert Datastore(copy.folder).manifest == before


def test_what_changes_a_datastore_keeps_its_gate(model, tokenizer, copy):
    write_settings(copy, 16, 0.3, 5.0, GATE)
    folder = copy.folder

    def state():
        store = Datastore(folder)
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


def foreign(folder, arrays, metadata):
    """A datastore whose publisher noted a file as its gate."""
    with begin(folder, "tune", {}) as job:
        manifest = read_manifest(folder)
        write_arrays(job.path("gate"), arrays, metadata)
        job.note(job.path("gate"))
        job.commit(manifest)


def test_a_gate_that_is_none_is_refused(model, copy):
    notes = {"gate": "meta-k", "metric": "l2"}
    good, mean = GATE.to_arrays(), GATE.to_arrays()["mean"]
    for arrays, changed, message in (
        (good | {"scale": np.zeros_like(mean)}, {}, "cannot be used"),
        (good, {"gate": "unknown"}, "cannot be used"),
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
        Datastore(copy.folder)


def test_the_command(run, model_folder, copied, tmp_path):
    text = tmp_path / "t.jsonl"
    text.write_text("".join(json.dumps({"text": one}) + "\n" for one in DOCUMENTS))
    command = ("tune", model_folder, copied, text, "--k", 32, "--allow-overlap")
    said = run.good(*command).out
    assert "other tokens" in said
    assert "add --write" in said
    found = run.good(*command, "--gate", "meta-k", "--write", "--json")
    assert (found.json["k"], found.json["written"], found.json["overlap"]) == (32, True, None)
    assert run("info", copied, "--json").json["gate"] == {"kind": "meta-k"}
    run.good("verify", copied)
    # The commands that score, explain and write text use what was stored.
    scored = run("eval", model_folder, copied, text, "--json")
    assert scored.json["settings"]["lmbda"] == "meta-k"
    explained = run("explain", model_folder, copied, TEXTS[3], "--json")
    assert all("influence" in token for token in explained.json["tokens"])
    assert (
        run("generate", model_folder, copied, "--prompt", "In", "--json").json["gate"] == "meta-k"
    )
    people = run.good(*command, "--write")
    assert "in place of its settings and its gate" in people.out
    assert run("info", copied, "--json").json["gate"] is None
    assert "(tuned on text given for it)" in run("info", copied).out
    plain = run.good("tune", model_folder, copied, text, "--k", 32, "--json").json
    scored = run("eval", model_folder, copied, text, "--json").json["settings"]
    assert (scored["k"], scored["lmbda"]) == (plain["k"], plain["lmbda"])
