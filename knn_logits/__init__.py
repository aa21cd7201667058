"""kNN language modelling for transformers: a memory for a model, with its sources.

Importing this package loads neither torch nor faiss; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from knn_logits._version import __version__ as __version__

_HOME = {
    "KNNLogitsProcessor": "knn_logits.generation.processor",
    "SharedPasses": "knn_logits.generation.shared",
    "Datastore": "knn_logits.store.datastore",
    "build_datastore": "knn_logits.building.builder",
    "build_index": "knn_logits.building.indexing",
    "build_suffixes": "knn_logits.building.indexing",
    "add_documents": "knn_logits.building.adding",
    "sync_documents": "knn_logits.building.syncing",
    "Sync": "knn_logits.building.syncing",
    "remove_documents": "knn_logits.building.removing",
    "compact": "knn_logits.building.removing",
    "cluster": "knn_logits.building.clustering",
    "merge_entries": "knn_logits.building.merging",
    "distill": "knn_logits.lab.distilling",
    "import_datastore": "knn_logits.lab.importing",
    "push_to_hub": "knn_logits.hub.push",
    "pull": "knn_logits.hub.pull",
    "explain": "knn_logits.evidence.explanation",
    "evaluate": "knn_logits.measure.perplexity",
    "Evaluation": "knn_logits.measure.results",
    "pair_tokenizer": "knn_logits.engine.compatibility",
    "text_ids": "knn_logits.engine.tokens",
    "chat_ids": "knn_logits.engine.tokens",
    "translate": "knn_logits.measure.translation",
    "evaluate_translations": "knn_logits.measure.translation",
    "Translations": "knn_logits.measure.translation",
    "tune": "knn_logits.measure.tune.tuner",
    "Tuning": "knn_logits.measure.tune.result",
    "fit_infini_gram": "knn_logits.measure.tune.infini_gram_shares",
    "InfiniGramFit": "knn_logits.measure.tune.infini_gram_shares",
    "Document": "knn_logits.corpus.documents",
    "Place": "knn_logits.corpus.documents",
    "read_corpus": "knn_logits.corpus.reading",
    "Estimate": "knn_logits.building.estimate",
    "estimate_build": "knn_logits.building.estimate",
    "Need": "knn_logits.building.estimate",
    "forecast": "knn_logits.building.estimate",
    "RayIndexes": "knn_logits.ray.searching",
    "KNNConfig": "knn_logits.settings.config",
    "IndexConfig": "knn_logits.settings.config",
    "WindowConfig": "knn_logits.settings.config",
    "Setting": "knn_logits.settings.declaration",
    "settings_for": "knn_logits.settings.registry",
    "check_settings": "knn_logits.settings.registry",
    "settings_line": "knn_logits.settings.registry",
    "Neighbors": "knn_logits.search.neighbors",
    "Retriever": "knn_logits.search.retriever",
    "GGUFModel": "knn_logits.engine.llama_cpp.model",
    "Pieces": "knn_logits.engine.pieces",
    "Memory": "knn_logits.mixture.memory",
    "Asking": "knn_logits.ask.asking",
    "AskConfig": "knn_logits.ask.config",
    "Answer": "knn_logits.ask.answer",
    "PassageEffect": "knn_logits.ask.answer",
    "Vote": "knn_logits.mixture.vote",
    "generation_settings": "knn_logits.mixture.presets",
    "use_fastest_dtype": "knn_logits.engine.forward",
    "Limits": "knn_logits.limits",
    "Deadline": "knn_logits.limits",
    "Gate": "knn_logits.mixture.gates.gate",
    "DistanceGate": "knn_logits.mixture.gates.distance",
    "fit_distance_gate": "knn_logits.mixture.gates.distance",
    "LearnedGate": "knn_logits.mixture.gates.learned",
    "fit_learned_gate": "knn_logits.mixture.gates.learned",
    "gate_features": "knn_logits.mixture.gates.learned",
    "ConfidenceSkip": "knn_logits.mixture.gates.skipping",
    "LearnedSkip": "knn_logits.mixture.gates.skipping",
    "MetaKGate": "knn_logits.mixture.gates.meta_k",
    "RescorerGate": "knn_logits.mixture.gates.rescorer",
    "load_gate": "knn_logits.mixture.gates.stored",
    "save_gate": "knn_logits.mixture.gates.stored",
    "Trace": "knn_logits.evidence.trace",
    "SequenceTrace": "knn_logits.evidence.trace",
    "TokenTrace": "knn_logits.evidence.trace",
    "NeighborTrace": "knn_logits.evidence.trace",
    "DocumentShare": "knn_logits.evidence.trace",
    "Rival": "knn_logits.evidence.trace",
    "Candidate": "knn_logits.evidence.trace",
    "Source": "knn_logits.evidence.sources",
    "contradiction": "knn_logits.evidence.sources",
    "main_sources": "knn_logits.evidence.sources",
    "word_sources": "knn_logits.evidence.sources",
    "KNNLogitsError": "knn_logits.errors",
    "ConfigError": "knn_logits.errors",
    "CorpusError": "knn_logits.errors",
    "ModelError": "knn_logits.errors",
    "DatastoreError": "knn_logits.errors",
    "IncompleteError": "knn_logits.errors",
    "DamagedError": "knn_logits.errors",
    "MismatchError": "knn_logits.errors",
    "BusyError": "knn_logits.errors",
    "HubError": "knn_logits.errors",
    "StorageError": "knn_logits.errors",
    "SearchError": "knn_logits.errors",
    "TraceError": "knn_logits.errors",
    "UnreachableError": "knn_logits.errors",
    "LimitError": "knn_logits.errors",
    "MissingDependencyError": "knn_logits.errors",
}

__all__ = [  # noqa: RUF022
    "KNNLogitsProcessor",
    "Memory",
    "Vote",
    "Asking",
    "AskConfig",
    "Answer",
    "PassageEffect",
    "Datastore",
    "build_datastore",
    "build_index",
    "build_suffixes",
    "add_documents",
    "sync_documents",
    "text_ids",
    "Sync",
    "remove_documents",
    "compact",
    "chat_ids",
    "cluster",
    "merge_entries",
    "distill",
    "import_datastore",
    "push_to_hub",
    "pull",
    "explain",
    "evaluate",
    "Evaluation",
    "pair_tokenizer",
    "translate",
    "evaluate_translations",
    "Translations",
    "tune",
    "Tuning",
    "fit_infini_gram",
    "InfiniGramFit",
    "Document",
    "Place",
    "read_corpus",
    "estimate_build",
    "Estimate",
    "Need",
    "forecast",
    "RayIndexes",
    "generation_settings",
    "use_fastest_dtype",
    "GGUFModel",
    "KNNConfig",
    "IndexConfig",
    "WindowConfig",
    "Setting",
    "SharedPasses",
    "settings_for",
    "check_settings",
    "settings_line",
    "Neighbors",
    "Retriever",
    "Pieces",
    "Limits",
    "Deadline",
    "Gate",
    "DistanceGate",
    "fit_distance_gate",
    "LearnedGate",
    "fit_learned_gate",
    "gate_features",
    "ConfidenceSkip",
    "LearnedSkip",
    "MetaKGate",
    "RescorerGate",
    "load_gate",
    "save_gate",
    "Trace",
    "SequenceTrace",
    "TokenTrace",
    "NeighborTrace",
    "DocumentShare",
    "Rival",
    "Candidate",
    "Source",
    "contradiction",
    "main_sources",
    "word_sources",
    "KNNLogitsError",
    "ConfigError",
    "CorpusError",
    "ModelError",
    "DatastoreError",
    "IncompleteError",
    "DamagedError",
    "MismatchError",
    "BusyError",
    "HubError",
    "StorageError",
    "SearchError",
    "UnreachableError",
    "TraceError",
    "LimitError",
    "MissingDependencyError",
]

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer, PassageEffect
    from knn_logits.ask.asking import Asking
    from knn_logits.ask.config import AskConfig
    from knn_logits.building.adding import add_documents
    from knn_logits.building.builder import build_datastore
    from knn_logits.building.clustering import cluster
    from knn_logits.building.estimate import Estimate, Need, estimate_build, forecast
    from knn_logits.building.indexing import build_index, build_suffixes
    from knn_logits.building.merging import merge_entries
    from knn_logits.building.removing import compact, remove_documents
    from knn_logits.building.syncing import Sync, sync_documents
    from knn_logits.corpus.documents import Document, Place
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
    from knn_logits.generation.shared import SharedPasses
    from knn_logits.hub.pull import pull
    from knn_logits.hub.push import push_to_hub
    from knn_logits.lab.distilling import distill
    from knn_logits.lab.importing import import_datastore
    from knn_logits.limits import Deadline, Limits
    from knn_logits.measure.perplexity import evaluate
    from knn_logits.measure.results import Evaluation
    from knn_logits.measure.translation import Translations, evaluate_translations, translate
    from knn_logits.measure.tune.infini_gram_shares import InfiniGramFit, fit_infini_gram
    from knn_logits.measure.tune.result import Tuning
    from knn_logits.measure.tune.tuner import tune
    from knn_logits.mixture.gates.distance import DistanceGate, fit_distance_gate
    from knn_logits.mixture.gates.gate import Gate
    from knn_logits.mixture.gates.learned import LearnedGate, fit_learned_gate, gate_features
    from knn_logits.mixture.gates.meta_k import MetaKGate
    from knn_logits.mixture.gates.rescorer import RescorerGate
    from knn_logits.mixture.gates.skipping import ConfidenceSkip, LearnedSkip
    from knn_logits.mixture.gates.stored import load_gate, save_gate
    from knn_logits.mixture.memory import Memory
    from knn_logits.mixture.presets import generation_settings
    from knn_logits.mixture.vote import Vote
    from knn_logits.ray.searching import RayIndexes
    from knn_logits.search.neighbors import Neighbors
    from knn_logits.search.retriever import Retriever
    from knn_logits.settings.config import IndexConfig, KNNConfig, WindowConfig
    from knn_logits.settings.declaration import Setting
    from knn_logits.settings.registry import check_settings, settings_for, settings_line
    from knn_logits.store.datastore import Datastore


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
