"""The studies: one of them derived again by hand, and a run that is stopped and goes on."""

import json
import math

import numpy as np
import pytest
import torch
from commands import write_corpus
from conftest import TEXTS

import knn_logits
from knn_logits.engine.location import find_key
from knn_logits.errors import ConfigError, CorpusError, ModelError
from knn_logits.index.exact import ExactIndex
from knn_logits.lab.ablation import gains, measuring, shared_parts
from knn_logits.lab.ablation.findings import Finding
from knn_logits.lab.ablation.measuring import measure_base, search_index
from knn_logits.lab.ablation.running import STUDIES, ablate, first_tokens
from knn_logits.lab.ablation.shared_parts import Studied, key_places
from knn_logits.lab.ablation.studies import study_temperature
from knn_logits.mixture.gates.distance import fit_distance_gate
from knn_logits.progress import no_progress
from knn_logits.store.reading import read_arrays

CORPUS = [f"{text} {TEXTS[(number + turn + 1) % 8]}" for turn in range(2)
          for number, text in enumerate(TEXTS)]  # fmt: skip
OTHER = [f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." for n in range(12)]
SETTINGS = {"entries": 500, "tokens": 400, "k": 32}


@pytest.fixture(scope="module", autouse=True)
def short_files():
    """Several files of keys, also for little text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_parts, "FILE_ENTRIES", 100)
        yield


@pytest.fixture
def studied(model, tokenizer, tmp_path):
    corpus, texts = (first_tokens(one, tokenizer, 400) for one in (CORPUS, OTHER))
    return Studied(model, tokenizer, corpus, texts, tmp_path, 32, 0, no_progress)


def test_the_temperatures_by_hand(studied):
    found = measure_base(studied)
    queries, store = studied.queries(), studied.store
    keys = store.keys(np.arange(len(store))).astype(np.float16).astype(np.float64)
    values = store.values.numpy()
    distances = ((queries.states.double().numpy()[:, None] - keys[None]) ** 2).sum(-1)
    order = np.argsort(distances, axis=1, kind="stable")
    near = np.take_along_axis(distances, order, 1)
    votes = values[order] == queries.targets.numpy()[:, None]
    p_lm = np.exp(queries.log_p_lm.double().numpy())
    second = queries.second.numpy()

    def perplexity(k, temperature, lmbda, rows):
        weights = np.exp(-(near[rows, :k] - near[rows, :1]) / temperature)
        p_knn = (weights * votes[rows, :k]).sum(1) / weights.sum(1)
        return math.exp(-np.log(lmbda * p_knn + (1 - lmbda) * p_lm[rows]).mean())

    held_out = found.at(1)
    assert len(held_out) == len(found.grid.temperatures) > 8
    for number, temperature in enumerate(found.grid.temperatures):
        tried = [
            (perplexity(k, temperature, lmbda, ~second), k, lmbda)
            for k in found.grid.ks
            for lmbda in found.grid.lmbdas
        ]
        best, k, lmbda = min(tried)
        mine = float(found.chosen_on[:, number].min())
        assert mine == pytest.approx(best, rel=1e-4)
        assert held_out[number] == pytest.approx(
            perplexity(k, temperature, lmbda, second), rel=1e-4
        )
        assert found.lmbda_at(number) == lmbda
    table = study_temperature(studied)
    assert [row[0] for row in table.rows] == list(found.grid.temperatures)
    assert 1.0 in found.grid.temperatures
    assert [row[2] for row in table.rows] == held_out


def test_the_rule_of_the_oracle_by_hand(studied):
    base, queries, store = measure_base(studied), studied.queries(), studied.store
    rows = {row[0]: row[1] for row in gains.study_oracle(studied).rows}
    keys = store.keys(np.arange(len(store))).astype(np.float16).astype(np.float64)
    distances = ((queries.states.double().numpy()[:, None] - keys[None]) ** 2).sum(-1)
    order = np.argsort(distances, axis=1, kind="stable")[:, : base.best.k]
    near = np.take_along_axis(distances, order, 1)
    weights = np.exp(-(near - near[:, :1]) / base.best.temperature)
    votes = store.values.numpy()[order] == queries.targets.numpy()[:, None]
    p_knn = (weights * votes).sum(1) / weights.sum(1)
    # The rule is steep where distances are near 0, and a difference of rounding counts there.
    nearest = read_arrays(studied.work / "tokens.safetensors")[0]["nearest"]
    assert nearest == pytest.approx(near[:, 0], rel=1e-4, abs=1e-3)
    second, p_lm = queries.second.numpy(), np.exp(queries.log_p_lm.double().numpy())
    with np.errstate(divide="ignore"):
        gate = fit_distance_gate(
            nearest[~second], np.log(p_lm[~second]), np.log(p_knn[~second]), "l2"
        )
    lmbda = np.interp(nearest[second], gate.middles.numpy(), gate.lmbdas.numpy())
    p = lmbda * p_knn[second] + (1 - lmbda) * p_lm[second]
    by_hand = math.exp(-np.log(p).mean())
    assert rows["λ by the nearest distance"] == pytest.approx(by_hand, rel=1e-4)
    oracle = np.maximum(p_knn, p_lm)[second]
    assert rows["oracle λ"] == pytest.approx(math.exp(-np.log(oracle).mean()), rel=1e-4)


def test_shown_tokens_differ(studied):
    passages = gains.study_tokens(studied).passages
    for first in ("Largest gains", "Largest losses"):
        start = next(at for at, line in enumerate(passages) if line.startswith(first)) + 2
        shown = [line for line in passages[start : start + 8] if line.startswith("- ")]
        assert 1 < len(shown) <= 8
        assert all("→" in line for line in shown)


def test_queries_are_those_of_eval(studied):
    queries = studied.queries()
    expected = knn_logits.evaluate(
        studied.model, studied.tokenizer, None, studied.texts,
        window=knn_logits.WindowConfig(
            studied.store.manifest.windows.window, studied.store.manifest.windows.stride
        ),
    )  # fmt: skip
    assert len(queries) == expected.total.tokens
    mean = float(queries.log_p_lm.double().mean())
    assert math.exp(-mean) == pytest.approx(expected.total.perplexity.lm, rel=1e-5)
    assert bool((queries.places.diff() > 0).all())


@pytest.fixture(scope="module")
def whole(model, tokenizer, tmp_path_factory):
    """A report that nothing disturbed."""
    folder = tmp_path_factory.mktemp("ablation") / "whole"
    return folder, ablate(model, tokenizer, CORPUS, OTHER, folder, command="made", **SETTINGS)


def contents(folder):
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".md", ".png")
    }


def test_the_report(whole):
    folder, result = whole
    assert set(result.findings) == set(STUDIES)
    text = (folder / "ablation.md").read_text()
    numbers = json.loads((folder / "ablation.json").read_text())
    for name, one in result.findings.items():
        assert f"## {one.title}" in text
        assert one.paper in text
        assert one.here in text
        assert one.rows
        if one.plot is not None:
            assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert Finding.from_dict(numbers["findings"][name]) == one
    assert not (folder / "work").exists()
    cells = result.findings["approximation"].rows
    assert [row[:2] for row in cells] == [
        [one, other] for one in ("exact", "approximate") for other in ("exact", "approximate")
    ]
    sizes = [row[0] for row in result.findings["size"].rows]
    assert sizes[-1] == result.settings["entries"]
    # All say the same of the setting that they share.
    base = result.findings["size"].rows[-1][-1]
    assert {row[0]: row[-1] for row in result.findings["metric"].rows}["l2"] == base
    assert {row[0]: row[-1] for row in result.findings["key"].rows}["FFN's input"] == base
    assert (
        next(row[-1] for row in cells if row[:2] == ["exact", "exact"])
        == (result.findings["precision"].rows[0][-1])
    )
    oracle = dict(map(tuple, result.findings["oracle"].rows))
    assert oracle["oracle λ"] < base
    assert oracle["oracle λ"] < oracle["λ by the nearest distance"]
    frequency, position, part = (
        result.findings[name].rows for name in ("frequency", "position", "part")
    )
    tokens = sum(row[1] for row in frequency)
    assert sum(row[1] for row in position) == sum(row[1] for row in part) == tokens
    gain = math.log(oracle["model alone"] / base)
    for rows in (frequency, position, part):
        mean = sum(row[1] * row[-1] for row in rows) / tokens
        assert mean == pytest.approx(gain, rel=1e-4)


class Stops:
    """Stops a run at a call of the progress."""

    def __init__(self, at):
        self.left = at

    def __call__(self, *_):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_stopped_again_and_again(model, tokenizer, whole, tmp_path, monkeypatch):
    folder = tmp_path / "stopped"
    done = []

    def noted(module, name, what):
        real = getattr(module, name)

        def call(*arguments, **settings):
            found = real(*arguments, **settings)
            done.append(what(*arguments, **settings))
            return found

        monkeypatch.setattr(module, name, call)

    noted(measuring, "likelihoods", lambda studied, phase, *_: phase)
    noted(shared_parts, "build_datastore", lambda *_, key, **__: f"build {key}")
    noted(
        shared_parts, "place_keys", lambda *arguments: f"keys from {arguments[-1][0].first_entry}"
    )
    noted(shared_parts, "read_queries", lambda studied, key: f"text {key}")
    noted(gains, "log_p_knn", lambda *_: "tokens")
    stops = 0
    while True:
        arguments = (model, tokenizer, CORPUS, OTHER, folder)
        try:
            result = ablate(*arguments, command="made", progress=Stops(30), **SETTINGS)
            break
        except KeyboardInterrupt:
            stops += 1
            assert stops < 60
    assert stops > 1
    places = len(key_places(model))
    assert len(done) == len(set(done))
    passes = [one for one in done if one.startswith("keys from")]
    assert len(passes) > 1
    # The text and the datastore, 4 sizes, the other places, 2 metrics, 3 precisions,
    # 3 approximations, and what all share.
    assert len(done) - len(passes) == places + 1 + 4 + (places - 1) + 2 + 3 + 3 + 1 + 1
    assert result.findings == whole[1].findings
    assert contents(folder) == contents(whole[0])
    again = ablate(*arguments, command="made", progress=Stops(20), **SETTINGS)
    assert again.findings == result.findings
    assert contents(folder) == contents(whole[0])


def test_what_is_refused(model, marian, tokenizer, whole, tmp_path):
    folder = whole[0]
    with pytest.raises(ConfigError, match="a different text"):
        ablate(model, tokenizer, CORPUS, OTHER[1:], folder, **SETTINGS)
    with pytest.raises(ConfigError, match="a different k"):
        ablate(model, tokenizer, CORPUS, OTHER, folder, **{**SETTINGS, "k": 16})
    with pytest.raises(ConfigError, match="no study 'sizes'"):
        ablate(model, tokenizer, CORPUS, OTHER, tmp_path, studies=["sizes"])
    with pytest.raises(ConfigError, match="entries"):
        ablate(model, tokenizer, CORPUS, OTHER, tmp_path, entries=10)
    with pytest.raises(CorpusError, match="two tokens"):
        ablate(model, tokenizer, CORPUS, [""], tmp_path)
    with pytest.raises(ModelError, match="causal"):
        ablate(marian, tokenizer, CORPUS, OTHER, tmp_path)
    assert not list(tmp_path.iterdir())


def test_keys_of_other_places_are_those_of_a_build(studied, tmp_path):
    for name, key in key_places(studied.model).items():
        batches, dim = studied.keys(key)
        found = np.concatenate(list(batches))
        built = knn_logits.build_datastore(
            studied.model, studied.tokenizer, studied.corpus, tmp_path / f"built {name}", key=key,
            keys_dtype="float32", calibrate=False,
            index=knn_logits.IndexConfig("exact"),
        )  # fmt: skip
        assert found.shape == (len(built), dim)
        expected = built.keys(np.arange(len(built)))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert len(list(studied.work.glob("keys-*"))) > 1


def test_places_are_of_the_model(model):
    places = key_places(model)
    assert list(places) == [
        "FFN's input",
        "layer's output",
        "attention's output",
        "output of the layer before",
        "head's input",
    ]
    for key in places.values():
        find_key(model, key)
    assert places["output of the layer before"] == "transformer.h.0:output"
    assert places["head's input"] == "transformer.ln_f:output"


def test_first_tokens_of_long_documents(tokenizer):
    whole = first_tokens(TEXTS, tokenizer, 10_000)
    assert [one.text for one in whole] == TEXTS
    ids = tokenizer(TEXTS[0])["input_ids"]
    (cut,) = first_tokens(TEXTS, tokenizer, len(ids) - 5)
    assert cut.text == tokenizer.decode(ids[:-5])
    assert TEXTS[0].startswith(cut.text)


def test_the_command(run, model_folder, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", CORPUS)
    text = write_corpus(tmp_path / "text.jsonl", OTHER)
    words = ("ablate", model_folder, corpus, text, "--out", tmp_path / "out", "--k", 8)
    words = (*words, "--entries", 400, "--tokens", 300, "--study", "k", "--study", "lmbda")
    found = run.good(*words, "--json")
    assert list(found.json["findings"]) == ["k", "lmbda"]
    people = run.good(*words)
    assert "ablation.md" in people.out
    same = run.refused("ablate", model_folder, corpus, corpus, "--out", tmp_path / "other")
    assert "is the corpus" in same.err


def test_searching_fewer_than_k():
    index = ExactIndex(torch.eye(3), "l2")
    found = search_index(index, torch.tensor([5, 6, 7]), torch.eye(3), 8)
    assert found.values[:, 0].tolist() == [5, 6, 7]
