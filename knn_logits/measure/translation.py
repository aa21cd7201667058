"""Translates without and with kNN, and measures BLEU and chrF. Khandelwal et al. (2021)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn
from typing_extensions import Unpack

from knn_logits.corpus.documents import Document, as_documents, checked_text, several
from knn_logits.engine.compatibility import check_tokenizer, pair_tokenizer
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.pairs import context_length
from knn_logits.errors import CorpusError, MissingDependencyError, ModelError
from knn_logits.generation.processor import KNNLogitsProcessor
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.presets import MemorySettings
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores
from knn_logits.store.records import PairsRecord


def sacrebleu() -> Any:
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as error:
        raise MissingDependencyError(
            'BLEU and chrF need sacrebleu: pip install "knn-logits[mt]"'
        ) from error


# The maximum length of a translation: a factor of its source's tokens, and an addition.
_LENGTH_FACTOR, _EXTRA_TOKENS = 2, 50


class TranslateSettings(MemorySettings, total=False):
    """Keyword arguments that say how sources are read and a memory is opened; see `translate`."""

    source_prefix: str | None
    source_lang: str | None
    target_lang: str | None


def translate(
    model: nn.Module,
    tokenizer: Any,
    sources: Sequence[str],
    datastore: Memory | Stores | None = None,
    *,
    num_beams: int = 1,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    progress: Progress = no_progress,
    **settings: Unpack[TranslateSettings],
) -> list[str]:
    """Writes a target for each source with an encoder-decoder model, such as a translation.

    Args:
        model: An encoder-decoder model.
        tokenizer: Its tokenizer.
        sources: The texts that the model reads, without prefix.
        datastore: A `Memory` of this model, or one or several datastores or their folders. None
            takes the model alone.
        num_beams: Number of beams; 1 is greedy search.
        batch_size: Number of sources in a batch. Sources are sorted by length.
        max_new_tokens: The most tokens to write for each source. None allows twice the tokens of a
            batch's longest source and 50 more, within what the model can read.
        progress: A callback that is told how many sources are done.
        source_prefix: Text that stands before every source; None takes the datastore's prefix.
        source_lang: Language of the sources, if the tokenizer knows languages; None takes the
            datastore's.
        target_lang: Language to write; None takes the datastore's.
        settings: `k`, `lmbda`, `temperature`, `weights`, `device` and so on, which `Memory`
            explains.

    Returns:
        A text for each source.

    Raises:
        ConfigError: when a setting is out of its range.
        MismatchError: when model or tokenizer are not the datastore's.
        ModelError: for a causal model.
    """
    sources = [checked_text(source, "a source") for source in several(sources, "sources")]
    overrides: dict[str, Any] = {**settings}
    reading = {name: overrides.pop(name, None) for name in PairsRecord.model_fields}
    memory = None if datastore is None else Memory.of(model, datastore, **overrides)
    for store in memory.stores if memory else []:
        check_tokenizer(tokenizer, store)
    pairs = pair_tokenizer(model, tokenizer, memory.stores[0] if memory else None, **reading)
    if pairs is None:
        raise ModelError("a causal model has no source input: use an encoder-decoder model")
    attached = KNNLogitsProcessor(model, memory, record=False) if memory else nullcontext()
    translations: list[str] = [""] * len(sources)
    progress("translating", 0, len(sources))
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    room: float = context_length(model) or math.inf
    writer: Any = model
    with attached as knn, evaluating(model):
        extra = {} if knn is None else {"logits_processor": [knn]}
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            inputs = pairs.inputs([sources[row] for row in rows], input_device(model))
            most = max_new_tokens or _LENGTH_FACTOR * inputs["input_ids"].shape[1] + _EXTRA_TOKENS
            output = writer.generate(
                **inputs,
                **pairs.settings,
                **extra,
                num_beams=num_beams,
                do_sample=False,
                max_new_tokens=min(most, room - len(pairs.opening)),
            )
            for row, text in zip(rows, pairs.texts(output), strict=True):
                translations[row] = text
            progress("translating", first + len(rows), len(sources))
    return translations


@dataclass(frozen=True)
class Translations:
    """The scores of a model's translations of the sources of some pairs.

    Attributes:
        pairs: Number of the pairs.
        num_beams: Number of beams; 1 is greedy search.
        lm: "bleu" and "chrf" of the model alone, from 0 to 100.
        knn: The same with kNN; None without a datastore.
        signatures: How sacrebleu computed "bleu" and "chrf".
    """

    pairs: int
    num_beams: int
    lm: dict[str, float]
    knn: dict[str, float] | None
    signatures: dict[str, str]


def evaluate_translations(
    model: nn.Module,
    tokenizer: Any,
    datastore: Stores | None,
    texts: Iterable[Document],
    *,
    num_beams: int = 5,
    progress: Progress = no_progress,
    **settings: Any,
) -> Translations:
    """Measures BLEU and chrF of a model's translations, without and with kNN.

    Args:
        model: An encoder-decoder model.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model, or one or several datastores or their folders. None
            measures the model alone.
        texts: The pairs. They are read once.
        num_beams: Number of beams; 1 is greedy search.
        progress: A callback that is told how many sources are done.
        settings: `source_prefix`, `source_lang` and `target_lang`, which `translate` explains;
            `k`, `lmbda`, `temperature` and so on, which `Memory` explains.

    Returns:
        The scores.

    Raises:
        CorpusError: when there is no pair.
        MissingDependencyError: when sacrebleu is not installed.
    """
    metrics = {"bleu": sacrebleu().metrics.BLEU(), "chrf": sacrebleu().metrics.CHRF()}
    read = {name: settings.pop(name) for name in PairsRecord.model_fields if name in settings}
    memory = None if datastore is None else Memory.of(model, datastore, **settings)
    if memory is not None and memory.stores[0].manifest.pairs is not None:
        # The model alone gets the same prefix and languages as with the datastore.
        read = memory.stores[0].manifest.pairs.model_dump() | read
    rows = list(as_documents(texts))
    if not rows or any(row.source is None for row in rows):
        raise CorpusError(
            "there are no source-target pairs to translate: use rows with a source and a target"
        )
    sources, targets = [str(row.source) for row in rows], [[row.text for row in rows]]

    def scores(of: Memory | None) -> dict[str, float]:
        how: dict[str, Any] = {"num_beams": num_beams, "progress": progress, **read}
        written = translate(model, tokenizer, sources, of, **how)
        return {name: one.corpus_score(written, targets).score for name, one in metrics.items()}

    return Translations(
        pairs=len(rows),
        num_beams=num_beams,
        lm=scores(None),
        knn=None if memory is None else scores(memory),
        signatures={name: str(one.get_signature()) for name, one in metrics.items()},
    )
