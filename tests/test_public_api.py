"""The public names, and what importing them loads."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import knn_logits
from knn_logits import errors, hosting

PUBLIC = knn_logits.__all__
HOSTING = hosting.__all__
ERRORS = [value for value in vars(errors).values() if inspect.isclass(value)]


def test_public_names():
    assert len(set(PUBLIC)) == len(PUBLIC) <= 35
    for name in PUBLIC:
        assert getattr(knn_logits, name).__name__ == name
        assert name in dir(knn_logits)
    assert knn_logits.__version__
    with pytest.raises(AttributeError, match="nonsense"):
        _ = knn_logits.nonsense


def test_public_names_and_their_members_have_docstrings():
    bare = []
    for name in (*PUBLIC, *HOSTING):
        value = getattr(knn_logits if name in PUBLIC else hosting, name)
        members = vars(value) if inspect.isclass(value) else {}
        described = {name: value} | {
            f"{name}.{key}": member
            for key, member in members.items()
            if not key.startswith("_")
            and (inspect.isroutine(member) or isinstance(member, property))
        }
        bare += [name for name, one in described.items() if not inspect.getdoc(one)]
    assert bare == []


def test_the_changelog_begins_with_this_version():
    changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert latest is not None
    assert latest[1] == knn_logits.__version__


def test_errors_are_one_family():
    assert len(ERRORS) > 10
    assert all(issubclass(error, knn_logits.KNNLogitsError) for error in ERRORS)


def modules_after(code):
    heavy = ("faiss", "gradio", "datasets", "torch", "bm25s")
    code += f"; import sys; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_loads_nothing_heavy():
    assert modules_after("import knn_logits") == []


def test_the_processor_and_a_build_load_only_torch():
    found = modules_after("from knn_logits import KNNLogitsProcessor, build_datastore, explain")
    assert found == ["torch"]
