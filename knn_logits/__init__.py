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
    "corpus.documents": "Block Document",
    "corpus.reading": "read_corpus",
    "settings.config": "KNNConfig IndexConfig WindowConfig AskConfig",
    "engine.llama_cpp.model": "GGUFModel",
    "mixture.memory": "Memory",
    "ask.asking": "Asking",
    "ask.answer": "Answer",
    "mixture.gates.gate": "Gate",
    "mixture.gates.adaptive": "AdaptiveGate",
    "mixture.gates.meta_k": "MetaKGate",
    "evidence.trace": "Trace",
    "evidence.sources": "Source",
    "errors": "KNNLogitsError",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer as Answer
    from knn_logits.ask.asking import Asking as Asking
    from knn_logits.building.builder import build_datastore as build_datastore
    from knn_logits.building.indexing import build_index as build_index
    from knn_logits.building.indexing import cluster as cluster
    from knn_logits.building.removing import remove_documents as remove_documents
    from knn_logits.building.updating import add_documents as add_documents
    from knn_logits.building.updating import sync_documents as sync_documents
    from knn_logits.corpus.documents import Block as Block
    from knn_logits.corpus.documents import Document as Document
    from knn_logits.corpus.reading import read_corpus as read_corpus
    from knn_logits.engine.llama_cpp.model import GGUFModel as GGUFModel
    from knn_logits.engine.tokens import text_ids as text_ids
    from knn_logits.errors import KNNLogitsError as KNNLogitsError
    from knn_logits.evidence.explanation import explain as explain
    from knn_logits.evidence.sources import Source as Source
    from knn_logits.evidence.trace import Trace as Trace
    from knn_logits.generation.processor import KNNLogitsProcessor as KNNLogitsProcessor
    from knn_logits.hub.pull import pull as pull
    from knn_logits.hub.push import push_to_hub as push_to_hub
    from knn_logits.lab.distilling import distill as distill
    from knn_logits.lab.importing import import_datastore as import_datastore
    from knn_logits.measure.perplexity import evaluate as evaluate
    from knn_logits.measure.translation import evaluate_translations as evaluate_translations
    from knn_logits.measure.translation import translate as translate
    from knn_logits.measure.tuner import tune as tune
    from knn_logits.mixture.gates.adaptive import AdaptiveGate as AdaptiveGate
    from knn_logits.mixture.gates.gate import Gate as Gate
    from knn_logits.mixture.gates.meta_k import MetaKGate as MetaKGate
    from knn_logits.mixture.memory import Memory as Memory
    from knn_logits.settings.config import AskConfig as AskConfig
    from knn_logits.settings.config import IndexConfig as IndexConfig
    from knn_logits.settings.config import KNNConfig as KNNConfig
    from knn_logits.settings.config import WindowConfig as WindowConfig
    from knn_logits.store.datastore import Datastore as Datastore


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"knn_logits.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
