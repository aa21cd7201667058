"""lm-evaluation-harness with a datastore scores as the library does, and generates with it."""

import json

import numpy as np
import pytest
import torch

from knn_logits import KNNLogitsProcessor
from knn_logits.engine.windows import Piece
from knn_logits.measure.bench import open_bench
from knn_logits.measure.perplexity import token_likelihoods

pytest.importorskip("lm_eval", reason='needs lm-eval: pip install "knn-logits[eval]"')

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance

from knn_logits.integrations.lm_eval import KNNLM

QUESTIONS = [
    ("When error code E42 appears, open the winch", " cover", " crane"),
    ("Queen Maira founded the town of", " Oldenport", " grade seven"),
    ("The crane needs oil of grade", " nine", " seven and a half"),
]
SETTINGS = {
    "default": {},
    "paper": {"preset": "paper", "lmbda": 0.3},
    "retomaton": {"retomaton": True, "min_knns": 4},
}


def asked(kind, *arguments, index=0):
    return Instance(kind, {}, arguments, index)


@pytest.fixture(scope="module")
def gated(model, tokenizer, build, tmp_path_factory):
    """A datastore as building leaves it, with its gate."""
    from conftest import TEXTS

    return build(TEXTS, tmp_path_factory.mktemp("gated") / "store", k=16)


@pytest.mark.parametrize("name", SETTINGS)
def test_log_likelihoods_are_those_of_the_librarys_scoring(model, tokenizer, gated, name):
    harness = KNNLM(model, gated, tokenizer=tokenizer, **SETTINGS[name])
    requests = [
        asked("loglikelihood", question, answer)
        for question, *answers in QUESTIONS
        for answer in answers
    ]
    found = harness.loglikelihood(requests, disable_tqdm=True)
    bench = open_bench(model, tokenizer, gated, **SETTINGS[name])
    for request, (log_p, _) in zip(requests, found, strict=True):
        question, answer = (tokenizer(text)["input_ids"] for text in request.args)
        piece = Piece(np.array([*question, *answer], np.int32), len(question) - 1, 0)
        wanted = sum(float(part.mixed.double().sum()) for part in token_likelihoods(bench, [piece]))
        assert log_p == pytest.approx(wanted, abs=1e-4)
    alone = KNNLM(model, gated, tokenizer=tokenizer, lmbda=0.0, preset="paper")
    assert found != alone.loglikelihood(requests, disable_tqdm=True)


def test_a_rolling_log_likelihood_is_that_of_the_text(model, tokenizer, gated, evaluate):
    text = "The keeper reads the code E42 from the barometer and lights the crane."
    harness = KNNLM(model, gated, tokenizer=tokenizer, preset="paper", lmbda=0.3)
    rolling = harness.loglikelihood_rolling([asked("loglikelihood_rolling", text)], True)[0]
    first = harness.prefix_token_id
    ids = [first, *tokenizer(text)["input_ids"]]
    bench = open_bench(model, tokenizer, gated, preset="paper", lmbda=0.3)
    parts = token_likelihoods(bench, [Piece(np.array(ids, np.int32), 0, 0)])
    assert rolling == pytest.approx(sum(float(part.mixed.sum()) for part in parts), abs=1e-4)


def test_greedy_is_what_generation_writes(model, tokenizer, gated):
    settings = {"preset": "paper", "lmbda": 0.6}
    prompt = "When error code E42 appears,"
    ids = tokenizer(prompt, return_tensors="pt")
    with KNNLogitsProcessor(model, gated, **settings) as knn:
        written = model.generate(**ids, logits_processor=[knn], max_new_tokens=4, do_sample=False)[
            0, ids["input_ids"].shape[1] :
        ]
    harness = KNNLM(model, gated, tokenizer=tokenizer, batch_size=2, **settings)
    request = (None, ids["input_ids"][0].tolist(), written.tolist())
    other = (None, ids["input_ids"][0].tolist(), [*written.tolist()[:3], 5])
    assert [greedy for _, greedy in harness._loglikelihood_tokens([request, other], True)] == [
        True,
        False,
    ]
    how = {"until": ["\n\n\n"], "max_gen_toks": 4, "do_sample": False}
    texts = harness.generate_until(
        [asked("generate_until", text, how) for text in (prompt, "Each morning")], True
    )
    assert texts[0] == tokenizer.decode(written, skip_special_tokens=True)
    assert torch.equal(model(**ids).logits, model(**ids).logits)  # no hook is left


def test_tasks_run_from_the_command_lines_arguments(model, tokenizer, gated, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"q": q, "choices": choices, "label": 0} for q, *choices in QUESTIONS]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    data = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{q}}",
    }
    choice = {
        "task": "choice",
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "label",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    writing = {
        "task": "writing",
        "output_type": "generate_until",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 3, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    arguments = (
        f"pretrained={tmp_path / 'model'},datastore={gated.folder},k=8,lmbda=0.9,dtype=float32"
    )
    found = simple_evaluate(
        model="knn",
        model_args=arguments,
        tasks=[{**data, **choice}, {**data, **writing}],
        device="cpu",
        batch_size=2,
        bootstrap_iters=0,
    )["results"]
    assert found["choice"]["acc,none"] == 1.0
    assert "exact_match,none" in found["writing"]
