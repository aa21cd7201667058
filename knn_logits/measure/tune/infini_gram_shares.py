"""Fits the share of the ∞-gram in the mixture for each length of the matched suffix on its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Floats, Ints
from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import evaluating
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.measure.bench import Bench, BenchSettings, halved, open_bench
from knn_logits.measure.overlap import Overlap, OverlapCheck
from knn_logits.measure.perplexity import token_likelihoods
from knn_logits.measure.text_pass import Texts, texts_by_name
from knn_logits.measure.tune.confidence import Verdict, compared_by_token
from knn_logits.mixture.memory import Memory
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores, open_stores
from knn_logits.search.infini_gram import LENGTHS
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import locked
from knn_logits.store.manifest import put_manifest, read_manifest
from knn_logits.store.records import InfiniGramRecord

logger = logging.getLogger(__name__)

_SHARES = np.array([0.0, 0.005, 0.01, 0.02, 0.03, *np.arange(1, 20) / 20, 0.97, 0.99])
# A length with fewer tokens is fitted together with the length before it.
_FEWEST = 100


@dataclass(frozen=True)
class InfiniGramFit:
    """The fitted shares, and their effect on the tokens that were held out.

    Attributes:
        record: The shares by length.
        tokens: Number of tokens that the shares were fitted to.
        held_out: Number of tokens that were held out.
        perplexity: The perplexities of the held-out tokens. "lm" is that of the model, "without"
            that of model and neighbors, and "with" that of model, neighbors and ∞-gram.
            "without_knn" is that of model and ∞-gram, with shares that were fitted without
            neighbors.
        verdict: Whether the ∞-gram makes the held-out tokens likelier with confidence.
        overlap: The text that the datastores contain as well; None if it was not searched.
        held_out_documents: Numbers of the documents that were held out. It is empty if a part of
            one document was.
        refused: Why the shares were not written; None if they were, or writing was not wanted.
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
        """Returns everything as JSON."""
        plain = ("tokens", "held_out", "perplexity", "refused")
        return {
            **{name: getattr(self, name) for name in plain},
            "infini_gram": self.record.model_dump(mode="json"),
            "held_out_documents": list(self.held_out_documents),
            "verdict": self.verdict.to_dict(),
            "overlap": self.overlap and self.overlap.to_dict(),
        }


@dataclass(frozen=True)
class _Tokens:
    """The probabilities of some tokens, with lengths and documents."""

    lm: Floats  # float64 [tokens], p by the model
    mixed: Floats  # float64 [tokens], p by the model and the neighbors
    expert: Floats  # float64 [tokens], p by the ∞-gram
    lengths: Ints  # int64 [tokens], the length of the matched suffix before each token
    documents: Ints  # int64 [tokens], the number of each token's document


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
        tokenizer: The tokenizer of the model.
        datastore: A `Memory` of this model, or a datastore with a suffix index, or its folder.
        texts: Documents like those that the model will meet. They must not be in the datastore.
            They are read once.
        samples: Resamples of the bootstrap.
        seed: The seed of the bootstrap.
        write: Whether to store the shares in the datastore, if they are better with confidence.
        force: Whether to store them even if they are not.
        allow_overlap: Whether to skip the search for text that the datastore contains as well.
        progress: A callback for the number of tokens that were scored, of those read so far.
        settings: The same settings as for `tune`.

    Returns:
        The fitted shares, and their effect on the other half.

    Raises:
        ConfigError: when a setting is out of its range, or `write` is given with several
            datastores.
        CorpusError: when a half has no token that follows another.
        DatastoreError: when a datastore has no suffix index.
    """
    stores = datastore.stores if isinstance(datastore, Memory) else open_stores(datastore)
    if write and len(stores) > 1:
        raise ConfigError(
            "write can store shares in only one datastore: tune each datastore separately"
        )
    options: Any = {**settings, "infini_gram": "auto"}
    of = datastore if isinstance(datastore, Memory) else stores
    bench = open_bench(model, tokenizer, of, **options)
    assert bench.memory is not None
    exclude = bench.memory.config.exclude
    check = None if allow_overlap else OverlapCheck(bench.memory.stores, exclude)
    (first, other), held_out = _scored(bench, texts_by_name(texts), check, progress)
    record, alone = fitted(first.mixed, first), fitted(first.lm, first)
    both = mixed(other.mixed, other, record)
    by_name = {
        "lm": other.lm,
        "without": other.mixed,
        "without_knn": mixed(other.lm, other, alone),
        "with": both,
    }
    gains = np.log(both) - np.log(other.mixed)
    perplexities = {name: float(np.exp(-np.log(p).mean())) for name, p in by_name.items()}
    verdict = compared_by_token(gains, other.documents, samples=samples, seed=seed)
    overlap, sizes = None if check is None else check.result(), (len(first.lm), len(other.lm))
    result = InfiniGramFit(record, *sizes, perplexities, verdict, overlap, held_out)
    if result.overlap is not None and result.overlap.notable:
        logger.warning("%s, so the shares are too large for other text", result.overlap)
    return _written(bench.memory.stores[0], result, force) if write else result


def _scored(
    bench: Bench, texts: Texts, check: OverlapCheck | None, progress: Progress
) -> tuple[list[_Tokens], tuple[int, ...]]:
    """The tokens of both halves of some texts, and the numbers of the held-out documents."""
    text, halves = halved(bench, texts, check)
    parts: list[list[_Tokens]] = [[], []]
    done = 0
    progress("tuning", 0, None)
    with evaluating(bench.model):
        for batch in token_likelihoods(bench, text.pieces()):
            assert batch.expert is not None
            logs = torch.stack([batch.lm, batch.without_expert, batch.expert[0]])
            lm, without, expert = logs.double().exp().numpy()
            lengths, documents = batch.expert[1].numpy(), text.documents_at(batch.places)
            tokens = _Tokens(lm, without, expert, lengths, documents)
            second = halves.second(batch.places)
            for part, rows in zip(parts, (~second, second), strict=True):
                part.append(_Tokens(*(field[rows] for field in vars(tokens).values())))
            done += len(batch.places)
            progress("tuning", done, None)
    columns = [zip(*(vars(tokens).values() for tokens in part), strict=True) for part in parts]
    joined = [_Tokens(*(np.concatenate(column) for column in half)) for half in columns if parts[0]]
    if not joined or not all(len(half.lm) for half in joined):
        raise CorpusError("the texts are too short to fit shares on half of them: add more text")
    return joined, halves.held_out()


def fitted(base: Floats, tokens: _Tokens) -> InfiniGramRecord:
    """Fits the best share for each length, from p of each token without it, float64 [tokens]."""
    place = np.searchsorted(LENGTHS, tokens.lengths, side="right") - 1
    fits: list[tuple[int, int, Floats]] = []  # length, number of tokens, log-likelihoods
    for number, length in enumerate(LENGTHS):
        rows = place == number
        p = np.log((1.0 - _SHARES) * base[rows, None] + _SHARES * tokens.expert[rows, None])
        count, sums = int(rows.sum()), p.sum(axis=0)
        if fits and (count < _FEWEST or fits[-1][1] < _FEWEST):
            before = fits.pop()
            length, count, sums = before[0], before[1] + count, before[2] + sums
        fits.append((length, count, sums))
    shares = tuple(float(_SHARES[int(sums.argmax())]) for *_, sums in fits)
    return InfiniGramRecord(lengths=tuple(length for length, *_ in fits), shares=shares)


def mixed(base: Floats, tokens: _Tokens, record: InfiniGramRecord) -> Floats:
    """Mixes the ∞-gram into the probabilities of tokens, float64 [tokens]."""
    shares = np.array([0.0, *record.shares])
    share = shares[np.searchsorted(record.lengths, tokens.lengths, side="right")]
    return (1.0 - share) * base + share * tokens.expert


def _written(store: Datastore, fit: InfiniGramFit, force: bool) -> InfiniGramFit:
    refused = None
    if not force and fit.overlap is not None and fit.overlap.held:
        refused = (
            f"{fit.overlap}, and shares fitted to such text are too large for any other; give "
            "text that is not in the datastore, or --allow-overlap (allow_overlap=True)"
        )
    elif not force and not fit.verdict.better:
        refused = fit.verdict.reason("the ∞-gram", "the memory without it")
        refused += "; --force (force=True) writes it anyway"
    if refused is not None:
        logger.warning("the shares were not stored: %s", refused)
        return replace(fit, refused=refused)
    folder = store.folder.resolve()
    with locked(folder):
        old = read_manifest(folder)
        put_manifest(folder, old.model_copy(update={"infini_gram": fit.record}))
    return fit
