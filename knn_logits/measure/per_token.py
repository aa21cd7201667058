"""A table of an evaluation's tokens: a parquet file, and the comparison with another run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from knn_logits.arrays import Ints
from knn_logits.errors import ConfigError
from knn_logits.evidence.token_documents import votes_by_document
from knn_logits.measure.results import compared
from knn_logits.metrics import as_distance
from knn_logits.mixture.memory import Memory
from knn_logits.search.neighbors import nearest_nearness

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


class TokenTable:
    """Collects the rows of `SCHEMA`, about 100 bytes for each token.

    Args:
        against: The file of another run, which is read now, before hours of work.
    """

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
        """Adds some tokens, `TokenLikelihoods`."""
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
        """Writes a parquet file."""
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
