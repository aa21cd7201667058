"""The result of an evaluation: perplexities, the bootstrap, and a table of its tokens."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from knn_logits.arrays import Floats, Ints
from knn_logits.errors import ConfigError
from knn_logits.evidence.token_documents import votes_by_document
from knn_logits.metrics import as_distance
from knn_logits.mixture.memory import Memory
from knn_logits.search.neighbors import nearest_nearness

_LARGEST_EXPONENT = 700.0
# With fewer documents, blocks of tokens are drawn.
_FEW_DOCUMENTS = 10
_BLOCK_TOKENS = 64
_SAMPLES = 1000
# The most units that the bootstrap draws at once, which take 32 MB for each column.
_DRAWN_AT_ONCE = 4 << 20
# The most documents that are named for a token.
MAX_SOURCES = 3
# The columns that two runs over the same texts have in common.
_PLACE = ("document", "place", "token")
_SOURCE = pa.struct([("document", pa.string()), ("share", pa.float32())])
SCHEMA = pa.schema(
    [
        ("document", pa.int64()),  # the document's number in the text
        ("place", pa.int64()),  # the token's position in the text
        ("token", pa.int64()),  # its id
        ("log_p_lm", pa.float32()),
        ("p_knn", pa.float32()),
        ("log_p", pa.float32()),
        ("lmbda", pa.float32()),  # 0 without neighbors
        ("distance", pa.float32()),  # of the nearest neighbor, or its similarity
        ("sources", pa.list_(_SOURCE)),  # the documents that vote for the token
    ]
)


@dataclass(frozen=True)
class Perplexities:
    """The perplexity of a text: the exponential of the mean negative log-likelihood of a token."""

    lm: float | None  # of the model alone
    # of the neighbors alone; None where it is infinite, as it is if a single token has no vote
    knn: float | None
    interpolated: float | None  # of the mixture


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        documents: Number of documents.
        tokens: Number of scored tokens, which are all but the first of each context.
        perplexity: The perplexities.
        interval: 95% interval of the mixture's perplexity divided by the model's, from a bootstrap
            over documents, or over blocks of 64 tokens where there are fewer than ten documents.
            None with a single block, and where a perplexity is infinite.
        settings: The conditions of the numbers: model, datastore, k, lmbda, temperature, windows.
        searches: Number of queries that the index was searched for.
        searches_saved: Number of queries that were answered without a search.
        seconds: Seconds that the pass over the text took, without loading.
        overlap: The share of the text's tokens that the datastores hold; None if it was not
            checked.
        against: The comparison with the run of `against`: `ratio` is this run's perplexity divided
            by the other's, `interval` its 95% interval; None without another run.
    """

    documents: int
    tokens: int
    perplexity: Perplexities
    interval: tuple[float, float] | None
    settings: dict[str, Any]
    searches: int
    searches_saved: int
    seconds: float
    overlap: float | None = None
    against: dict[str, Any] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Number of tokens scored in a second."""
        return self.tokens / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON."""
        rounded = {
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
        }
        return asdict(self) | rounded


def perplexity(nats: float, count: float) -> float | None:
    """Computes exp(nats / count); None if it is infinite or the count is 0."""
    if count <= 0 or not nats / count < _LARGEST_EXPONENT:
        return None
    return math.exp(nats / count)


def compared(gains: Floats, documents: Ints) -> dict[str, Any]:
    """Compares two runs by each token's gain in log p, float64, and document, int64 [tokens].

    The 95% interval is None with fewer than two units, or if a gain is infinite.
    """
    numbers, units = np.unique(documents, return_inverse=True)
    whole = len(numbers) >= _FEW_DOCUMENTS
    if not whole:
        order = np.argsort(units, kind="stable")
        counts = np.bincount(units)
        inside = np.arange(len(units)) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = units[order] * (len(units) + 1) + inside // _BLOCK_TOKENS
        gains, units = gains[order], np.unique(blocks, return_inverse=True)[1]
    sums: Floats = np.stack([-np.bincount(units, gains), np.bincount(units)], axis=-1)
    nats, tokens = sums.sum(axis=0).tolist()
    return {
        "ratio": math.exp(nats / max(1, tokens)),
        "interval": _interval(sums) if len(sums) > 1 and math.isfinite(nats) else None,
        "units": "documents" if whole else "blocks of tokens",
        "count": len(sums),
        "tokens": int(tokens),
    }


def _interval(units: Floats) -> tuple[float, float]:
    """95% interval of exp(sum of the first column / sum of the second) of units, [units, 2]."""
    random = np.random.default_rng(0)
    drawn = np.empty((_SAMPLES, 2))
    at_once = max(1, _DRAWN_AT_ONCE // len(units))
    for first in range(0, _SAMPLES, at_once):
        chosen = random.integers(0, len(units), (min(at_once, _SAMPLES - first), len(units)))
        drawn[first : first + at_once] = units[chosen].sum(axis=1)
    sums, sizes = drawn.T
    low, high = np.exp(np.quantile(sums / sizes, [0.025, 0.975]))
    return float(low), float(high)


class TokenTable:
    """Collects the rows of `SCHEMA`, about 100 bytes for each token."""

    def __init__(self, against: str | Path | None = None) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._against = against
        self._other: pa.Table | None = None
        if against is not None:
            try:
                self._other = pq.read_table(against, columns=[*_PLACE, "log_p"])
            except (OSError, pa.ArrowException, ValueError) as error:
                raise ConfigError(f"{against} is no file of --per-token: {error}") from error

    def add(self, documents: Ints, batch: Any, memory: Memory | None) -> None:
        rows, found = len(batch.places), batch.neighbors
        distance: Any = np.full(rows, np.nan, np.float32)
        sources: list[list[dict[str, Any]]] = [[]] * rows
        if memory is not None and found is not None:
            nearest = as_distance(nearest_nearness(found), found.metric)
            distance = nearest.cpu().float().numpy()
            sources = _sources(batch, memory)
        columns = [
            documents,
            batch.places,
            batch.targets.numpy(),
            *(one.float().numpy() for one in (batch.lm, batch.knn.exp(), batch.mixed)),
            batch.lmbdas.float().numpy(),
            distance,
            pa.array(sources, SCHEMA.field("sources").type),
        ]
        self._parts.append(pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=SCHEMA))

    def sorted(self) -> pa.Table:
        """All rows, in the order of the text."""
        return pa.Table.from_batches(self._parts, SCHEMA).sort_by("place")

    def write(self, path: str | Path) -> None:
        pq.write_table(self.sorted(), path)

    def comparison(self) -> dict[str, Any] | None:
        """Compares this run with the other, as `compared` does; None without another run."""
        if self._other is None:
            return None
        ours, other = self.sorted(), self._other
        if not ours.select(_PLACE).equals(other.select(_PLACE)):
            raise ConfigError(
                f"{self._against} has other tokens: evaluate the same text in both runs"
            )
        log_p = (one["log_p"].to_numpy().astype(np.float64) for one in (ours, other))
        return compared(np.subtract(*log_p), ours["document"].to_numpy())


def _sources(batch: Any, memory: Memory) -> list[list[dict[str, Any]]]:
    """The documents that vote for each token, the largest share of its votes first."""
    found = batch.neighbors
    votes = batch.log_weights.exp() * (found.values == batch.targets.to(found.values)[:, None])
    shares = votes / votes.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    ids = found.ids.cpu().numpy()
    return [
        [
            {"document": vote.store.documents[vote.number].id, "share": vote.share}
            for vote in votes_by_document(ids[row], of_row, memory.retriever.locate)[:MAX_SOURCES]
        ]
        for row, of_row in enumerate(shares.cpu().numpy())
    ]
