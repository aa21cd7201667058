"""What an encoder-decoder model writes to its sources, without and with kNN, and how good it is.

Khandelwal et al. (2021), "Nearest Neighbor Machine Translation", section 3. BLEU and chrF are
those of sacrebleu (Post, 2018), named by their signatures.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from typing_extensions import Unpack

from knn_logits.capture.forward import evaluating, input_device
from knn_logits.combined import Stores
from knn_logits.compatibility import check_tokenizer, pair_tokenizer
from knn_logits.config import check_threads, whole_number
from knn_logits.corpus.documents import Document, checked_text, several
from knn_logits.datastore.store import Datastore
from knn_logits.errors import CorpusError, ModelError
from knn_logits.evaluation.scores import Score, scores
from knn_logits.evaluation.texts import named
from knn_logits.memory import Memory, MemorySettings
from knn_logits.processor import KNNLogitsProcessor
from knn_logits.progress import Progress, no_progress
from knn_logits.text.pairs import PairTokenizer, context_length

_BATCH_SIZE = 16
# A translation may be so many times as long as its source, and longer by so many tokens.
_TIMES, _MORE = 2, 50
# Settings that say what an encoder reads.
_READING = ("source_prefix", "source_lang", "target_lang", "max_new_tokens")


def translate(
    model: nn.Module,
    tokenizer: Any,
    sources: Sequence[str],
    datastore: Memory | Stores | None = None,
    *,
    num_beams: int = 1,
    batch_size: int = _BATCH_SIZE,
    max_new_tokens: int | None = None,
    source_prefix: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    progress: Progress = no_progress,
    phase: str = "translating",
    **settings: Unpack[MemorySettings],
) -> list[str]:
    """Translates, or summarizes: whatever an encoder-decoder model writes to a source.

    Args:
        model: An encoder-decoder model.
        tokenizer: Its tokenizer.
        sources: What it reads, without prefix.
        datastore: A `Memory` of this model; or a datastore or its folder, or several; None takes
            the model alone.
        num_beams: Beams, 1 for greedy search.
        batch_size: Sources at once; they are sorted by length.
        max_new_tokens: Tokens written at most; None allows for twice a batch's longest source and
            50 more, as far as the model can read.
        source_prefix: Stands before every source; None takes the datastore's, as for the next two.
        source_lang: Language of the sources, where the tokenizer knows languages.
        target_lang: The language to write.
        progress: Told how many sources are done.
        phase: What progress calls this work.
        settings: `k`, `lmbda`, `temperature`, `weights`, `device` and the others: see `Memory`.

    Returns:
        A text for each source.

    Raises:
        ConfigError: when a setting is out of its range.
        MismatchError: when model or tokenizer are not the datastore's.
        ModelError: for a causal model.
    """
    num_beams = whole_number("num_beams", num_beams, 1)
    batch_size = whole_number("batch_size", batch_size, 1)
    if max_new_tokens is not None:
        max_new_tokens = whole_number("max_new_tokens", max_new_tokens, 1)
    check_threads(settings.get("threads"))
    sources = [checked_text(one, "a source") for one in several(sources, "sources")]
    memory = None if datastore is None else Memory.of(model, datastore, **settings)
    for store in memory.stores if memory else []:
        check_tokenizer(tokenizer, store)
    pairs = pair_tokenizer(
        model,
        tokenizer,
        memory.stores[0] if memory else None,
        source_prefix=source_prefix,
        source_lang=source_lang,
        target_lang=target_lang,
    )
    if pairs is None:
        raise ModelError("a causal model reads no source: give an encoder-decoder model")
    attached = KNNLogitsProcessor(model, memory, record=False) if memory else nullcontext()
    found: list[str] = [""] * len(sources)
    progress(phase, 0, len(sources))
    done = 0
    with attached as knn, evaluating(model):
        extra = {} if knn is None else {"logits_processor": [knn]}
        written = _written(model, pairs, sources, num_beams, batch_size, max_new_tokens, extra)
        for rows, texts in written:
            for row, text in zip(rows, texts, strict=True):
                found[row] = text
            done += len(rows)
            progress(phase, done, len(sources))
    return found


def _written(
    model: Any,
    pairs: PairTokenizer,
    sources: Sequence[str],
    num_beams: int,
    batch_size: int,
    max_new_tokens: int | None,
    extra: dict[str, Any],
) -> Iterator[tuple[list[int], list[str]]]:
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    room = context_length(model)
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        inputs = pairs.inputs([sources[row] for row in rows], input_device(model))
        most = max_new_tokens or _TIMES * inputs["input_ids"].shape[1] + _MORE
        if room is not None:
            most = min(most, room - len(pairs.opening))
        output = model.generate(
            **inputs,
            num_beams=num_beams,
            do_sample=False,
            max_new_tokens=most,
            **pairs.settings,
            **extra,
        )
        yield rows, pairs.texts(output)


def reading_of(store: Datastore) -> dict[str, Any]:
    """Prefix and languages of a datastore, for a `translate` without it."""
    record = store.manifest.pairs
    return record.model_dump() if record is not None else {}


@dataclass(frozen=True)
class Translations:
    """What a model wrote to the sources of a text, and how near it is to the targets.

    Attributes:
        name: The text's name.
        pairs: Its pairs.
        num_beams: Beams, 1 for greedy search.
        lm: BLEU and chrF of the model alone.
        knn: Those with kNN; None without a datastore.
        p_value: By score, how often the difference of both is as large by chance: sacrebleu's
            paired bootstrap.
        lm_per_second: Pairs a second of the model alone.
        knn_per_second: Those with kNN.
        texts: Source, target and what was written by each, a row a pair.
    """

    name: str
    pairs: int
    num_beams: int
    lm: dict[str, Score]
    knn: dict[str, Score] | None
    p_value: dict[str, float] | None
    lm_per_second: float
    knn_per_second: float | None
    texts: list[dict[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the texts, as JSON."""
        plain = asdict(self)
        del plain["texts"]
        return plain


def evaluate_translations(
    model: nn.Module,
    tokenizer: Any,
    datastore: Stores | None,
    texts: Mapping[str, Iterable[Document]],
    *,
    num_beams: Sequence[int] = (1, 5),
    batch_size: int = _BATCH_SIZE,
    samples: int = 1000,
    progress: Progress = no_progress,
    **settings: Any,
) -> list[Translations]:
    """BLEU and chrF of what a model writes without and with kNN.

    Args:
        model: An encoder-decoder model.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model; or a datastore or its folder, or several; None
            measures the model alone.
        texts: Pairs by name; read once.
        num_beams: Each number of beams to decode with.
        batch_size: Sources at once.
        samples: Resamples of the bootstrap over pairs, for intervals and p values.
        progress: Told how many sources are done.
        settings: `source_prefix`, `source_lang` and `target_lang`, see `translate`; `k`, `lmbda`,
            `temperature` and the others, see `Memory`.

    Returns:
        One result a text and number of beams.

    Raises:
        CorpusError: when a text has no pair.
        MissingDependencyError: when sacrebleu is not installed.
    """
    lots = named(texts)
    read = {name: settings.pop(name) for name in _READING if name in settings}
    memory = None if datastore is None else Memory.of(model, datastore, **settings)
    # The model alone reads what it reads beside the datastore.
    read = (reading_of(memory.stores[0]) if memory else {}) | read
    found = []
    for name, documents in lots.items():
        rows = list(documents)
        if not rows or any(row.source is None for row in rows):
            raise CorpusError(f"{name}: translations are measured on pairs with a source each")
        sources, targets = [str(row.source) for row in rows], [row.text for row in rows]
        for beams in num_beams:
            systems: dict[str, list[str]] = {}
            speeds: dict[str, float] = {}
            for system in ("lm", "knn") if memory else ("lm",):
                started = time.monotonic()
                systems[system] = translate(
                    model,
                    tokenizer,
                    sources,
                    memory if system == "knn" else None,
                    num_beams=beams,
                    batch_size=batch_size,
                    progress=progress,
                    phase=f"{name}, {'kNN' if system == 'knn' else 'model'}, beams {beams}",
                    **read,
                )
                speeds[system] = len(sources) / max(time.monotonic() - started, 1e-9)
            measured, p_value = scores(systems, targets, samples)
            found.append(
                Translations(
                    name=name,
                    pairs=len(rows),
                    num_beams=beams,
                    lm=measured["lm"],
                    knn=measured.get("knn"),
                    p_value=p_value,
                    lm_per_second=speeds["lm"],
                    knn_per_second=speeds.get("knn"),
                    texts=[
                        {
                            "source": sources[row],
                            "target": targets[row],
                            **{system: lines[row] for system, lines in systems.items()},
                        }
                        for row in range(len(rows))
                    ],
                )
            )
    return found
