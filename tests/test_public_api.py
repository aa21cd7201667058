"""The public names, and what importing them loads."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import knn_logits

PUBLIC = [
    "AdaptiveGate", "Answer", "AskConfig", "Asking",
    "Block", "BusyError", "Candidate", "ConfigError", "CorpusError", "DamagedError",
    "Datastore",
    "DatastoreError", "Deadline", "Document", "DocumentShare",
    "Evaluation",
    "GGUFModel", "Gate", "HubError",
    "IncompleteError", "IndexConfig", "KNNConfig", "KNNLogitsError",
    "KNNLogitsProcessor",
    "LimitError", "Limits", "Memory", "MetaKGate", "MismatchError",
    "MissingDependencyError", "ModelError", "NeighborTrace", "Neighbors", "PassageEffect",
    "Pieces",
    "RayIndexes", "Retriever", "Rival",
    "SearchError", "SequenceTrace", "Setting",
    "Source", "StorageError", "Sync", "TokenTrace",
    "Trace",
    "TraceError",
    "Translations", "Tuning", "UnreachableError", "Vote", "WindowConfig", "add_documents",
    "build_datastore",
    "build_index", "build_suffixes",
    "chat_ids", "check_settings", "cluster", "compact", "contradiction", "distill",
    "evaluate",
    "evaluate_translations", "explain",
    "generation_settings", "import_datastore", "load_gate", "main_sources",
    "pair_tokenizer", "pull", "push_to_hub", "read_corpus", "remove_documents", "save_gate",
    "settings_for", "settings_line",
    "sync_documents", "text_ids", "translate", "tune", "use_fastest_dtype", "word_sources",
]  # fmt: skip


def test_public_names():
    assert sorted(knn_logits.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(knn_logits, name).__name__ == name
        assert name in dir(knn_logits)
    assert knn_logits.__version__
    with pytest.raises(AttributeError, match="nonsense"):
        _ = knn_logits.nonsense


def test_public_names_and_their_members_have_docstrings():
    bare = []
    for name in PUBLIC:
        value = getattr(knn_logits, name)
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
    for name in PUBLIC:
        if name.endswith("Error"):
            assert issubclass(getattr(knn_logits, name), knn_logits.KNNLogitsError)


def modules_after(code):
    heavy = ("faiss", "gradio", "datasets", "torch")
    code += f"; import sys; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_loads_nothing_heavy():
    assert modules_after("import knn_logits") == []


def test_the_processor_loads_neither_faiss_nor_datasets():
    found = modules_after("from knn_logits import KNNLogitsProcessor, build_datastore, explain")
    assert found == ["torch"]
