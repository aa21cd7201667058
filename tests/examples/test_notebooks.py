"""The notebooks run from their first cell to their last, and are kept without their output.

The cells run in this process, one after another in one namespace: a kernel of Jupyter would cost a
dozen packages, and the import of PyTorch for each notebook. What a cell ends with is shown as a
notebook shows it, by `_repr_html_`.
"""

import ast
import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def cells_of(name):
    return json.loads((EXAMPLES / name).read_text("utf-8"))["cells"]


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Runs a notebook: its namespace, and what its cells ended with."""

    def run(name):
        monkeypatch.chdir(EXAMPLES)
        monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
        names, shown = {"__name__": "__main__"}, []
        for number, cell in enumerate(cells_of(name)):
            if cell["cell_type"] != "code":
                continue
            tree = ast.parse("".join(cell["source"]), f"{name}, cell {number}")
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"{name}, cell {number}", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), name, "eval"), names)
                shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else value)
        return names, shown

    return run


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_output(name):
    notebook = json.loads((EXAMPLES / name).read_text("utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_a_folder_becomes_coloured_words_in_ten_cells(ran):
    name = "from_a_folder_to_coloured_words.ipynb"
    assert len([cell for cell in cells_of(name) if cell["cell_type"] == "code"]) == 10
    names, shown = ran(name)
    assert "adjust the front hose" in names["trace"][0].text
    assert names["trace"][0].documents[0].document == "manual-086.txt"
    assert any("adjust" in str(one) and "<span" in str(one) for one in shown)
    answer = next(one for one in shown if isinstance(one, str) and "How do I fix" in one)
    assert "front hose" not in answer  # without the memory
    contradicted = [
        one.token for one in names["checked"][0].tokens if one.meaning == "contradicted"
    ]
    assert any("clean" in one for one in contradicted)
    assert (names["work"] / "checked.html").is_file()


def test_a_gate_of_ones_own_spares_text_that_the_datastore_does_not_know(ran):
    names, _ = ran("a_gate_of_your_own.ipynb")
    constant = names["perplexities"](0.8)
    for gate in (names["own"], names["fitted"]):
        alone, mixed = gate["unlike it"]
        assert mixed < constant["unlike it"][1]
        assert alone == pytest.approx(constant["unlike it"][0])
    alone, mixed = names["fitted"]["like it"]
    assert mixed < alone  # and it still helps where it knows something


def test_a_glossary_brings_its_terms_and_names_their_sentences(ran):
    names, shown = ran("a_glossary.ipynb")
    alone, _, with_gate = [one for one in shown if isinstance(one, list)]
    assert "Windwiege" in alone[0]  # word by word
    assert with_gate[0] == "Ein Radfahrer fährt an einem Brisenstuhl vorbei."
    assert names["alone"] == 0.0
    assert names["gated"] > 0.6
    assert names["gated"] > names["constant"]
    strongest = max(names["trace"][0].tokens, key=lambda token: token.influence)
    assert "wind cradle" in strongest.neighbors[0].source
