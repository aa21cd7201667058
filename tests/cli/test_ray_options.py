"""--ray, --shards, --replicas and --partial where there is no Ray, or no cluster."""

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
        ("explain", model_folder, store.folder, "The crane", "--ray", "auto"),
        ("chat", model_folder, store.folder, "--ray", "auto"),
        ("serve", model_folder, store.folder, "--ray", "auto"),
    ]
    for call in calls:
        answer = run(*call)
        assert answer.code == 1
        assert "Ray is not installed: pip install 'knn-logits[ray]'" in answer.err
        assert len(answer.err.strip().splitlines()) <= 3
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("generate", ("--prompt", "The")),
        ("eval", ("some.txt",)),
        ("explain", ("The crane",)),
        ("chat", ()),
        ("serve", ()),
    ],
)
@pytest.mark.parametrize("option", [("--shards", 2), ("--replicas", 2), ("--partial",)])
def test_options_that_need_ray(run, model_folder, store, command, more, option):
    answer = run(command, model_folder, store.folder, *more, *option)
    if (command, option) == ("serve", ("--partial",)):
        # A client could not see that an answer is partial.
        assert answer.code == 2
        return
    assert answer.code == 1
    assert f"{option[0]} has no effect without --ray ADDRESS" in answer.err
    assert len(answer.err.splitlines()) == 1
