"""Experiments: a row for each token, paired comparisons, cached passes, config files."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import write_corpus
from conftest import TEXTS, make_gpt2

from knn_logits.errors import ConfigError
from knn_logits.measure.results import compared

LINES = [
    "The harbour crane lifts twelve crates, and Queen Maira reads the barometer. " * 3,
    "When error code E42 appears, open the winch cover each morning.",
    *(f"In {year} the keeper lit the lamp of Oldenport." for year in range(1300, 1312)),
]
SETTINGS = {"preset": "paper", "k": 8, "lmbda": 0.2, "temperature": 5.0}
PAPER = {"preset": "paper", "allow_overlap": True}


@pytest.fixture(scope="module")
def gated(build, tmp_path_factory):
    """A datastore with the gate that a build fits."""
    return build(TEXTS, tmp_path_factory.mktemp("gated") / "s", k=8, calibrate=True)


def test_a_table_of_the_tokens(evaluate, store, gated, tmp_path):
    for opened, settings in ((store, PAPER), (store, PAPER | {"retomaton": True}), (gated, {})):
        found = evaluate(opened, LINES[:3], per_token=tmp_path / "t", **settings)
        rows = pq.read_table(tmp_path / "t").to_pylist()
        assert len(rows) == found.tokens
        gains, documents = ([row[name] for row in rows] for name in ("log_p", "document"))
        gains = np.subtract(gains, [row["log_p_lm"] for row in rows])
        again = compared(gains, np.array(documents))["interval"]
        assert found.interval == pytest.approx(again, rel=1e-5)
        for name, column in (("lm", "log_p_lm"), ("interpolated", "log_p")):
            mean = sum(row[column] for row in rows) / len(rows)
            assert math.exp(-mean) == pytest.approx(getattr(found.perplexity, name), rel=1e-4)
        for row in rows:
            p = row["lmbda"] * row["p_knn"] + (1 - row["lmbda"]) * math.exp(row["log_p_lm"])
            assert math.exp(row["log_p"]) == pytest.approx(p, rel=1e-3)
            shares = [one["share"] for one in row["sources"]]
            assert bool(shares) == (row["p_knn"] > 0)
            assert shares == sorted(shares, reverse=True)
            assert sum(shares) <= 1.001
        assert {one["document"] for row in rows for one in row["sources"]} <= set("01234567")
        assert all(row["distance"] >= 0 for row in rows if opened is store)


def test_two_runs_are_compared_by_token(evaluate, store, tmp_path):
    evaluate(store, LINES, per_token=tmp_path / "one", lmbda=0.0, **PAPER)
    other = evaluate(store, LINES, against=tmp_path / "one", lmbda=0.2, **PAPER)
    total = other.perplexity
    assert other.against["ratio"] == pytest.approx(total.interpolated / total.lm, rel=1e-4)
    low, high = other.against["interval"]
    assert low <= other.against["ratio"] <= high
    assert other.against["units"] == "documents"
    same = evaluate(store, LINES, against=tmp_path / "one", lmbda=0.0, **PAPER)
    assert same.against["interval"] == (1.0, 1.0) or same.against["interval"] == [1.0, 1.0]
    with pytest.raises(ConfigError, match="same text"):
        evaluate(store, LINES[1:], against=tmp_path / "one", **PAPER)
    (tmp_path / "bad").write_text("no table")
    with pytest.raises(ConfigError, match="--per-token"):
        evaluate(store, LINES, against=tmp_path / "bad", **PAPER)


def test_passes_are_computed_once(evaluate, tune, store, tmp_path, monkeypatch):
    def run(**settings):
        return evaluate(store, LINES, cache=tmp_path / "passes", **PAPER, **settings)

    plain = evaluate(store, LINES, **PAPER)
    assert run().perplexity == plain.perplexity
    monkeypatch.setattr("knn_logits.measure.text_pass.key_states_and_logits", None)
    assert run().perplexity == plain.perplexity
    assert run(lmbda=0.9).perplexity.interpolated != plain.perplexity.interpolated
    assert run(retomaton=True).perplexity.lm == plain.perplexity.lm
    tuned = tune(store, LINES, cache=tmp_path / "passes", allow_overlap=True)
    assert tuned.held_out.tokens + tuned.chosen_on.tokens == plain.tokens
    with pytest.raises(TypeError):  # other windows are other passes
        evaluate(store, LINES[:1] * 2, cache=tmp_path / "passes", **PAPER)


def test_a_model_with_other_weights_has_other_passes(model, tokenizer, tmp_path):
    from knn_logits import evaluate

    def perplexity(model):
        return evaluate(model, tokenizer, None, LINES, cache=tmp_path).perplexity.lm

    other = make_gpt2(seed=1)
    assert perplexity(model) != perplexity(other)
    assert len(list(tmp_path.iterdir())) == 2
    (file, _) = tmp_path.iterdir()
    file.write_bytes(b"damaged")
    assert perplexity(other) == evaluate(other, tokenizer, None, LINES).perplexity.lm


def test_a_gate_reads_distributions_so_its_passes_are_not_kept(gated, evaluate, tmp_path, caplog):
    found = evaluate(gated, LINES, cache=tmp_path / "passes", allow_overlap=True)
    assert found.perplexity == evaluate(gated, LINES, allow_overlap=True).perplexity
    assert "the cache is not used" in caplog.text
    assert not (tmp_path / "passes").exists()


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_options_from_a_file(run, model_folder, store, tmp_path, kind):
    text = write_corpus(tmp_path / "text.jsonl", LINES)
    values = {"model": str(model_folder), "paths": [str(store.folder), text], "k": 4}
    values |= {"lmbda": 0.5, "allow-overlap": True, "json": True}
    file = tmp_path / f"run.{kind}"
    sign = " = " if kind == "toml" else ": "
    lines = [f"{key}{sign}{json.dumps(value)}" for key, value in values.items()]
    file.write_text("\n".join(lines) + "\n")
    found = run.good("eval", "--config", file).json
    assert (found["settings"]["k"], found["settings"]["lmbda"]) == (4, 0.5)
    assert run.good("eval", "--config", file, "--k", 2).json["settings"]["k"] == 2
    plain = run.good("eval", model_folder, store.folder, text, "--k", 4, "--lmbda", 0.5, "--json")
    assert found["perplexity"] == plain.json["perplexity"]
    file.write_text(f"lamda{sign}0.5\n")
    assert "'lamda' is no option" in run.refused("eval", "--config", file).err
    file.write_text("[[")
    assert "cannot be read" in run.refused("eval", "--config", file).err


def test_a_trainer_evaluates_with_a_datastore(tokenizer, tmp_path):
    from datasets import Dataset
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    from knn_logits.integrations.trainer import KNNEvaluation

    rows = Dataset.from_list([{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS])
    trainer = Trainer(
        model=make_gpt2(),
        args=TrainingArguments(
            str(tmp_path), max_steps=2, eval_strategy="steps", eval_steps=1, use_cpu=True,
            report_to="none", logging_steps=1,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )  # fmt: skip
    trainer.add_callback(KNNEvaluation(trainer, TEXTS, LINES, **SETTINGS))
    trainer.train()
    logged = [one for one in trainer.state.log_history if "eval_knn_perplexity" in one]
    assert len(logged) == 2
    assert logged[0]["eval_knn_perplexity"] != logged[0]["eval_knn_lm_perplexity"]
    assert trainer.evaluate()["eval_knn_perplexity"] > 1
