"""kNN language modelling for transformers: a memory for a model, with its sources.

Importing this package loads neither torch nor faiss; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from knn_logits._version import __version__ as __version__

# A name is loaded from its module when it is first used. All others are of `errors`.
_MODULES = {
    "generation.processor": "KNNLogitsProcessor",
    "store.datastore": "Datastore",
    "building.builder": "build_datastore",
    "building.indexing": "build_index build_suffixes",
    "building.adding": "add_documents",
    "building.syncing": "sync_documents Sync",
    "building.removing": "remove_documents compact",
    "building.clustering": "cluster",
    "lab.distilling": "distill",
    "lab.importing": "import_datastore",
    "hub.push": "push_to_hub",
    "hub.pull": "pull",
    "evidence.explanation": "explain",
    "measure.perplexity": "evaluate",
    "measure.results": "Evaluation",
    "engine.compatibility": "pair_tokenizer",
    "engine.tokens": "text_ids chat_ids",
    "measure.translation": "translate evaluate_translations Translations",
    "measure.tune.tuner": "tune",
    "measure.tune.result": "Tuning",
    "corpus.blocks": "Block",
    "corpus.documents": "Document",
    "corpus.reading": "read_corpus",
    "ray.searching": "RayIndexes",
    "settings.config": "KNNConfig IndexConfig",
    "settings.passes": "WindowConfig",
    "settings.declaration": "Setting",
    "settings.registry": "settings_for check_settings settings_line",
    "search.neighbors": "Neighbors",
    "search.retriever": "Retriever",
    "engine.llama_cpp.model": "GGUFModel",
    "engine.pieces": "Pieces",
    "mixture.memory": "Memory",
    "ask.asking": "Asking",
    "ask.config": "AskConfig",
    "ask.answer": "Answer PassageEffect",
    "mixture.vote": "Vote",
    "mixture.presets": "generation_settings",
    "engine.forward": "use_fastest_dtype",
    "limits": "Limits Deadline",
    "mixture.gates.gate": "Gate",
    "mixture.gates.adaptive": "AdaptiveGate",
    "mixture.gates.meta_k": "MetaKGate",
    "mixture.gates.stored": "load_gate save_gate",
    "evidence.trace": "Trace SequenceTrace TokenTrace NeighborTrace DocumentShare Rival Candidate",
    "evidence.sources": "Source contradiction main_sources word_sources",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = ["KNNLogitsProcessor", "Datastore", "build_datastore", "build_index", "build_suffixes"]
__all__ += ["add_documents", "sync_documents", "Sync", "remove_documents", "compact", "cluster"]
__all__ += ["distill", "import_datastore", "push_to_hub", "pull", "explain"]
__all__ += ["evaluate", "Evaluation", "pair_tokenizer", "text_ids", "chat_ids", "translate"]
__all__ += ["evaluate_translations", "Translations", "tune", "Tuning", "Document"]
__all__ += ["Block", "read_corpus"]
__all__ += ["RayIndexes", "KNNConfig", "IndexConfig", "WindowConfig", "Setting"]
__all__ += ["settings_for", "check_settings", "settings_line", "Neighbors"]
__all__ += [
    "Retriever",
    "GGUFModel",
    "Pieces",
    "Memory",
    "Asking",
    "AskConfig",
    "Answer",
    "PassageEffect",
]
__all__ += ["Vote", "generation_settings", "use_fastest_dtype", "Limits", "Deadline", "Gate"]
__all__ += ["AdaptiveGate", "MetaKGate", "load_gate", "save_gate"]
__all__ += ["Trace", "SequenceTrace", "TokenTrace", "NeighborTrace", "DocumentShare", "Rival"]
__all__ += ["Candidate", "Source", "contradiction", "main_sources", "word_sources"]
__all__ += ["KNNLogitsError", "ConfigError", "CorpusError", "ModelError", "DatastoreError"]
__all__ += ["IncompleteError", "DamagedError", "MismatchError", "BusyError", "HubError"]
__all__ += ["StorageError", "SearchError", "UnreachableError", "TraceError", "LimitError"]
__all__ += ["MissingDependencyError"]

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer, PassageEffect
    from knn_logits.ask.asking import Asking
    from knn_logits.ask.config import AskConfig
    from knn_logits.building.adding import add_documents
    from knn_logits.building.builder import build_datastore
    from knn_logits.building.clustering import cluster
    from knn_logits.building.indexing import build_index, build_suffixes
    from knn_logits.building.removing import compact, remove_documents
    from knn_logits.building.syncing import Sync, sync_documents
    from knn_logits.corpus.blocks import Block
    from knn_logits.corpus.documents import Document
    from knn_logits.corpus.reading import read_corpus
    from knn_logits.engine.compatibility import pair_tokenizer
    from knn_logits.engine.forward import use_fastest_dtype
    from knn_logits.engine.llama_cpp.model import GGUFModel
    from knn_logits.engine.pieces import Pieces
    from knn_logits.engine.tokens import chat_ids, text_ids
    from knn_logits.errors import (
        BusyError,
        ConfigError,
        CorpusError,
        DamagedError,
        DatastoreError,
        HubError,
        IncompleteError,
        KNNLogitsError,
        LimitError,
        MismatchError,
        MissingDependencyError,
        ModelError,
        SearchError,
        StorageError,
        TraceError,
        UnreachableError,
    )
    from knn_logits.evidence.explanation import explain
    from knn_logits.evidence.sources import Source, contradiction, main_sources, word_sources
    from knn_logits.evidence.trace import (
        Candidate,
        DocumentShare,
        NeighborTrace,
        Rival,
        SequenceTrace,
        TokenTrace,
        Trace,
    )
    from knn_logits.generation.processor import KNNLogitsProcessor
    from knn_logits.hub.pull import pull
    from knn_logits.hub.push import push_to_hub
    from knn_logits.lab.distilling import distill
    from knn_logits.lab.importing import import_datastore
    from knn_logits.limits import Deadline, Limits
    from knn_logits.measure.perplexity import evaluate
    from knn_logits.measure.results import Evaluation
    from knn_logits.measure.translation import Translations, evaluate_translations, translate
    from knn_logits.measure.tune.result import Tuning
    from knn_logits.measure.tune.tuner import tune
    from knn_logits.mixture.gates.adaptive import AdaptiveGate
    from knn_logits.mixture.gates.gate import Gate
    from knn_logits.mixture.gates.meta_k import MetaKGate
    from knn_logits.mixture.gates.stored import load_gate, save_gate
    from knn_logits.mixture.memory import Memory
    from knn_logits.mixture.presets import generation_settings
    from knn_logits.mixture.vote import Vote
    from knn_logits.ray.searching import RayIndexes
    from knn_logits.search.neighbors import Neighbors
    from knn_logits.search.retriever import Retriever
    from knn_logits.settings.config import IndexConfig, KNNConfig
    from knn_logits.settings.declaration import Setting
    from knn_logits.settings.passes import WindowConfig
    from knn_logits.settings.registry import check_settings, settings_for, settings_line
    from knn_logits.store.datastore import Datastore


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"knn_logits.{_HOME.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
