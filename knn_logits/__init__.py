"""kNN language modelling for transformers: a memory for a model, with its sources.

Importing this package loads neither torch nor faiss; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from knn_logits._version import __version__ as __version__

# A name is loaded from its module when it is first used.
_MODULES = {
    "generation.processor": "KNNLogitsProcessor",
    "store.datastore": "Datastore",
    "building.builder": "build_datastore",
    "building.indexing": "build_index cluster",
    "building.updating": "add_documents sync_documents",
    "building.removing": "remove_documents",
    "lab.distilling": "distill",
    "lab.importing": "import_datastore",
    "hub.push": "push_to_hub",
    "hub.pull": "pull",
    "evidence.explanation": "explain",
    "measure.perplexity": "evaluate",
    "engine.tokens": "text_ids",
    "measure.translation": "translate evaluate_translations",
    "measure.tuner": "tune",
    "corpus.blocks": "Block",
    "corpus.documents": "Document",
    "corpus.reading": "read_corpus",
    "settings.config": "KNNConfig IndexConfig",
    "settings.passes": "WindowConfig",
    "engine.llama_cpp.model": "GGUFModel",
    "mixture.memory": "Memory",
    "ask.asking": "Asking",
    "ask.config": "AskConfig",
    "ask.answer": "Answer",
    "mixture.gates.gate": "Gate",
    "mixture.gates.adaptive": "AdaptiveGate",
    "mixture.gates.meta_k": "MetaKGate",
    "evidence.trace": "Trace",
    "evidence.sources": "Source",
    "errors": "KNNLogitsError",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "KNNLogitsProcessor",
    "Datastore",
    "build_datastore",
    "build_index",
    "add_documents",
    "sync_documents",
    "remove_documents",
    "cluster",
    "distill",
    "import_datastore",
    "push_to_hub",
    "pull",
    "explain",
    "evaluate",
    "text_ids",
    "translate",
    "evaluate_translations",
    "tune",
    "Block",
    "Document",
    "read_corpus",
    "KNNConfig",
    "IndexConfig",
    "WindowConfig",
    "GGUFModel",
    "Memory",
    "Asking",
    "AskConfig",
    "Answer",
    "Gate",
    "AdaptiveGate",
    "MetaKGate",
    "Trace",
    "Source",
    "KNNLogitsError",
]

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer
    from knn_logits.ask.asking import Asking
    from knn_logits.ask.config import AskConfig
    from knn_logits.building.builder import build_datastore
    from knn_logits.building.indexing import build_index, cluster
    from knn_logits.building.removing import remove_documents
    from knn_logits.building.updating import add_documents, sync_documents
    from knn_logits.corpus.blocks import Block
    from knn_logits.corpus.documents import Document
    from knn_logits.corpus.reading import read_corpus
    from knn_logits.engine.llama_cpp.model import GGUFModel
    from knn_logits.engine.tokens import text_ids
    from knn_logits.errors import KNNLogitsError
    from knn_logits.evidence.explanation import explain
    from knn_logits.evidence.sources import Source
    from knn_logits.evidence.trace import Trace
    from knn_logits.generation.processor import KNNLogitsProcessor
    from knn_logits.hub.pull import pull
    from knn_logits.hub.push import push_to_hub
    from knn_logits.lab.distilling import distill
    from knn_logits.lab.importing import import_datastore
    from knn_logits.measure.perplexity import evaluate
    from knn_logits.measure.translation import evaluate_translations, translate
    from knn_logits.measure.tuner import tune
    from knn_logits.mixture.gates.adaptive import AdaptiveGate
    from knn_logits.mixture.gates.gate import Gate
    from knn_logits.mixture.gates.meta_k import MetaKGate
    from knn_logits.mixture.memory import Memory
    from knn_logits.settings.config import IndexConfig, KNNConfig
    from knn_logits.settings.passes import WindowConfig
    from knn_logits.store.datastore import Datastore


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"knn_logits.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
