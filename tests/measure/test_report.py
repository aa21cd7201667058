"""The page for a model card."""

import json
import sys

import numpy as np
import pytest

from knn_logits.errors import MissingDependencyError
from knn_logits.measure.report import page, write_report
from knn_logits.measure.results import Evaluation, Tally, join


def make_result(names=("a.txt",), documents=3):
    tallies, texts = [], []
    random = np.random.default_rng(0)
    for name in names:
        tally = Tally()
        lm = random.uniform(-8, -2, 60)
        knn = np.where(random.random(60) < 0.2, -np.inf, lm + 1)
        tally.add(np.arange(60) % documents, lm, knn, lm + 0.5)
        texts.append(tally.result(name, documents, 30, 200, with_knn=True, samples=50, seed=0))
        tallies.append(tally)
    total = join(tallies).result(
        "total", documents * len(names), 30, 200, with_knn=True, samples=50, seed=0
    )
    settings = {"model": "org/model_name", "k": 8, "lmbda": 0.25}
    return Evaluation(texts, total, settings, 60, 0, 1.0)


def test_the_page_holds_setting_table_plot_and_command():
    result = make_result(("a.txt", "b|c.txt"))
    text = page(result, "knn-logits eval m s 'b|c.txt'")
    assert "| text | tokens | model | neighbors | mixture | oracle |" in text
    assert "b\\|c.txt" in text
    assert "| total | 120 |" in text
    assert "| lmbda | 0.25 |" in text
    assert "](evaluation.png)" in text
    assert "```bash\nknn-logits eval m s 'b|c.txt'\n```" in text
    assert "95% interval" in text
    assert "A neighbor votes for" in text
    assert "org/model\\_name" in text
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in table} == {8, 3}


def test_a_command_with_backticks_stays_in_its_fence():
    assert "````bash\nknn-logits eval '```'\n````" in page(make_result(), "knn-logits eval '```'")
    assert "Command" not in page(make_result())


@pytest.mark.parametrize("texts", [1, 3, 30])
def test_files(tmp_path, texts):
    pytest.importorskip("matplotlib")
    result = make_result([f"text{n}" for n in range(texts)], documents=1 + texts % 2)
    files = write_report(result, tmp_path / "card", "command")
    assert [path.name for path in files] == [
        "evaluation.md",
        "evaluation.png",
        "evaluation.json",
    ]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    content = json.loads(files[2].read_text())
    assert content["command"] == "command"
    assert len(content["texts"]) == texts


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"knn-logits\[plots\]"):
        write_report(make_result(), tmp_path / "card")
    assert not (tmp_path / "card").exists()
