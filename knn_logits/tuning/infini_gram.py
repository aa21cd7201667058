"""How much the ∞-gram counts by the length of the text's end that occurs, fitted to text.

Lengths are taken by themselves, since each token has one of them: for each the share that makes
its tokens likeliest is the best of a list. Settings of the neighbors stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Bools, Floats, Ints
from knn_logits.capture.forward import evaluating
from knn_logits.combined import Stores
from knn_logits.corpus.documents import Document
from knn_logits.datastore.lock import locked
from knn_logits.datastore.manifest import read_manifest
from knn_logits.datastore.records import InfiniGramRecord
from knn_logits.datastore.store import Datastore
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.evaluation.bench import BenchSettings, open_bench
from knn_logits.evaluation.overlap import Overlap, OverlapCheck
from knn_logits.evaluation.perplexity import token_likelihoods
from knn_logits.evaluation.texts import Texts, named
from knn_logits.infini_gram import LENGTHS
from knn_logits.memory import Memory
from knn_logits.progress import Progress, no_progress
from knn_logits.tuning.confidence import Verdict, compared_by_token
from knn_logits.tuning.parts import halved

logger = logging.getLogger(__name__)

_SHARES = np.array([0.0, 0.005, 0.01, 0.02, 0.03, *np.arange(1, 20) / 20, 0.97, 0.99])
# A length of fewer tokens is taken together with the one before it.
_FEWEST = 100


@dataclass(frozen=True)
class InfiniGramFit:
    """What was fitted, and what it is worth on the tokens that were held out.

    Attributes:
        record: The shares by length.
        tokens: Tokens that they were fitted to.
        held_out: Tokens held out.
        perplexity: Of those, under the model, "lm"; the model and the neighbors, "without"; the
            model and the ∞-gram, "without_knn", at shares fitted to that; and all three, "with".
        verdict: Whether it is better with confidence than without.
        overlap: What the datastores hold of the texts; None where nobody looked.
        held_out_documents: Numbers of the documents held out; empty where it is part of one.
        refused: Why nothing was written; None where something was, or nothing was to be.
    """

    record: InfiniGramRecord
    tokens: int
    held_out: int
    perplexity: dict[str, float]
    verdict: Verdict
    overlap: Overlap | None
    held_out_documents: tuple[int, ...] = ()
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "infini_gram": self.record.model_dump(mode="json"),
            "tokens": self.tokens,
            "held_out": self.held_out,
            "perplexity": self.perplexity,
            "held_out_documents": list(self.held_out_documents),
            "verdict": self.verdict.to_dict(),
            "overlap": self.overlap.to_dict() if self.overlap is not None else None,
            "refused": self.refused,
        }


@dataclass(frozen=True)
class _Tokens:
    """Some tokens: p by the model, by model and neighbors, by the ∞-gram; its length; their place.

    Attributes:
        lm: float64 [tokens].
        mixed: float64 [tokens].
        expert: float64 [tokens].
        lengths: int64 [tokens].
        documents: int64 [tokens].
    """

    lm: Floats
    mixed: Floats
    expert: Floats
    lengths: Ints
    documents: Ints

    def __getitem__(self, rows: Bools) -> _Tokens:
        return _Tokens(*(one[rows] for one in vars(self).values()))


def fit_infini_gram(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    texts: Texts | Iterable[Document | str],
    *,
    samples: int = 1000,
    seed: int = 0,
    write: bool = False,
    force: bool = False,
    allow_overlap: bool = False,
    progress: Progress = no_progress,
    **settings: Unpack[BenchSettings],
) -> InfiniGramFit:
    """Fits the shares of the ∞-gram to one half of some texts, and measures them on the other.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model; or a datastore with a suffix index, or its folder.
        texts: Documents like those the model will meet, not those of the datastore; read once.
        samples: Resamples of the bootstrap.
        seed: Of the bootstrap.
        write: Store the shares in the datastore, if they are better with confidence than none.
        force: Write all the same.
        allow_overlap: Do not look whether the datastore holds the texts.
        progress: Told how many tokens are scored, of those read so far.
        settings: As for `tune`.

    Raises:
        ConfigError: when a setting is out of its range, or several datastores are to be written.
        CorpusError: when a half has no token that follows another.
        DatastoreError: when a datastore has no suffix index.
    """
    asked: Any = {**settings, "infini_gram": "auto"}
    bench = open_bench(model, tokenizer, datastore, **asked)
    memory = bench.memory
    assert memory is not None
    if write and len(memory.stores) > 1:
        raise ConfigError("shares are written into one datastore; tune each on its own")
    check = None if allow_overlap else OverlapCheck(memory.stores, memory.config.exclude)
    text, halves = halved(bench, named(texts), check)
    parts: list[list[_Tokens]] = [[], []]
    done = 0
    progress("tuning", 0, None)
    with evaluating(model):
        for batch in token_likelihoods(bench, text.pieces()):
            assert batch.expert is not None
            tokens = _Tokens(
                batch.lm.double().exp().numpy(),
                batch.without_expert.double().exp().numpy(),
                batch.expert[0].double().exp().numpy(),
                batch.expert[1].numpy(),
                text.documents_at(batch.places),
            )
            second = halves.second(batch.places)
            for part, rows in zip(parts, (~second, second), strict=True):
                part.append(tokens[rows])
            done += len(batch.places)
            progress("tuning", done, text.tokens)
    first, other = (_joined(part) for part in parts)
    if not len(first.lm) or not len(other.lm):
        raise CorpusError("the texts are too short to fit shares on one half: give more")
    record, alone = fitted(first.mixed, first), fitted(first.lm, first)
    both = mixed(other.mixed, other, record)
    verdict = compared_by_token(
        np.log(both) - np.log(other.mixed), other.documents, samples=samples, seed=seed
    )
    found = InfiniGramFit(
        record,
        len(first.lm),
        len(other.lm),
        {
            "lm": _perplexity(other.lm),
            "without": _perplexity(other.mixed),
            "without_knn": _perplexity(mixed(other.lm, other, alone)),
            "with": _perplexity(both),
        },
        verdict,
        None if check is None else check.result(),
        halves.held_out(),
    )
    return _written(memory.stores[0], found, force) if write else found


def fitted(base: Floats, tokens: _Tokens) -> InfiniGramRecord:
    """The best share for each length.

    Args:
        base: p of each token without the ∞-gram, float64 [tokens].
        tokens: The tokens.
    """
    place = np.searchsorted(LENGTHS, tokens.lengths, side="right") - 1
    lengths: list[int] = []
    counts: list[int] = []
    sums: list[Floats] = []
    for number, length in enumerate(LENGTHS):
        rows = place == number
        p = np.log((1.0 - _SHARES) * base[rows, None] + _SHARES * tokens.expert[rows, None]).sum(
            axis=0
        )
        if sums and (rows.sum() < _FEWEST or counts[-1] < _FEWEST):
            sums[-1], counts[-1] = sums[-1] + p, counts[-1] + int(rows.sum())
            continue
        lengths.append(length)
        counts.append(int(rows.sum()))
        sums.append(p)
    shares = tuple(float(_SHARES[int(one.argmax())]) for one in sums)
    return InfiniGramRecord(lengths=tuple(lengths), shares=shares)


def mixed(base: Floats, tokens: _Tokens, record: InfiniGramRecord) -> Floats:
    """p of each token with the ∞-gram, float64 [tokens]."""
    shares = np.array([0.0, *record.shares])
    own = shares[np.searchsorted(record.lengths, tokens.lengths, side="right")]
    return (1.0 - own) * base + own * tokens.expert


def _joined(parts: list[_Tokens]) -> _Tokens:
    fields = zip(*(vars(one).values() for one in parts), strict=True)
    return _Tokens(*(np.concatenate(one) for one in fields))


def _perplexity(p: Floats) -> float:
    return float(np.exp(-np.log(p).mean()))


def _written(store: Datastore, found: InfiniGramFit, force: bool) -> InfiniGramFit:
    refused = None
    if not force and found.overlap is not None and found.overlap.held:
        refused = f"{found.overlap}; give other text, or say --allow-overlap (allow_overlap=True)"
    elif not force and not found.verdict.better:
        refused = found.verdict.reason("the ∞-gram", "the memory without it")
    if refused is not None:
        logger.warning("nothing is written: %s", refused)
        return InfiniGramFit(**{**vars(found), "refused": refused})
    folder = store.folder.resolve()
    with locked(folder):
        read_manifest(folder).model_copy(update={"infini_gram": found.record}).write(folder)
    return found
