"""The ∞-gram: p(y) = count(suffix y) / count(suffix), of the longest suffix. Liu et al. (2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from knn_logits.index.opening import Indexes
from knn_logits.search.matches import Matches
from knn_logits.search.occurrences import Occurrences, Prefixes
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore

# The share of the ∞-gram by its minimum number of tokens. The shares lie between
# those that are best for PEPs and for WikiText-2 (docs/research/infini-gram.md).
_LENGTHS = (1, 2, 3, 4, 5, 7, 9, 13)
_SHARES = (0.02, 0.2, 0.22, 0.25, 0.28, 0.35, 0.5, 0.7)


class InfiniGram:
    """The ∞-gram of one or several datastores, which are read as one corpus."""

    @classmethod
    def opened(
        cls, stores: Sequence[Datastore], config: KNNConfig, indexes: Indexes
    ) -> InfiniGram | None:
        """See `Expert.opened`. A share of 0 asks for none, also of a datastore without an index."""
        return cls(stores, config, indexes) if config.infini_gram else None

    def __init__(self, stores: Sequence[Datastore], config: KNNConfig, indexes: Indexes) -> None:
        self._matches = Matches.of_stores(stores, indexes, config.exclude)
        given = config.infini_gram
        # Ascending lengths, the share below all lengths, and that from each on.
        lengths, shares = (_LENGTHS, _SHARES) if given == "auto" else ((1,), (float(given or 0.0),))
        self._lengths, self._shares = torch.tensor(lengths), torch.tensor([0.0, *shares])

    def find(self, prefixes: Prefixes) -> Occurrences:
        """The occurrences of the longest suffix of each text, in all datastores."""
        occurrences = self._matches.find(prefixes)
        return occurrences.weighed(self.shares(occurrences.lengths))

    def shares(self, lengths: Tensor) -> Tensor:
        """The ∞-gram's share in the mixture for suffixes of these lengths, float32 [rows]."""
        places = torch.bucketize(lengths, self._lengths, right=True)
        return self._shares[places]
