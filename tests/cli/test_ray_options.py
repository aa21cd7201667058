"""--ray, --shards and --partial where there is no Ray, or no cluster."""

import sys

import pytest
from commands import write_corpus


@pytest.fixture
def _no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.usefixtures("_no_ray")
def test_ray_is_missing(run, model_folder, store, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    calls = [
        ("build", model_folder, corpus, "--out", tmp_path / "s", "--ray", "auto"),
        ("generate", model_folder, store.folder, "--prompt", "The", "--ray", "auto"),
        ("eval", model_folder, store.folder, corpus, "--ray", "auto"),
    ]
    for call in calls:
        answer = run(*call)
        assert answer.code == 1
        assert "Ray is not installed: pip install 'knn-logits[ray]'" in answer.err
        assert len(answer.err.strip().splitlines()) <= 3
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("option", [("--shards", 2), ("--partial",)])
def test_options_that_need_ray(run, model_folder, store, option):
    answer = run("generate", model_folder, store.folder, "--prompt", "The", *option)
    assert answer.code == 1
    assert "have no effect without --ray" in answer.err
