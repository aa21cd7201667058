"""Finds the longest verbatim match of a text in datastores, and what follows it: the ∞-gram."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.index.opening import Indexes, hidden_entries
from knn_logits.search.neighbors import Occurrences, Prefixes
from knn_logits.search.suffix_index import SuffixIndex
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore

# The number of last tokens of a document that are looked up at once, and the maximum number that
# are compared.
_TAIL_TOKENS, _MAX_TAIL = 4, 256
# The share of the ∞-gram by its minimum number of tokens. The shares lie between
# those that are best for PEPs and for WikiText-2 (docs/research/infini-gram.md).
_LENGTHS = (1, 2, 3, 4, 5, 7, 9, 13)
_SHARES = (0.02, 0.2, 0.22, 0.25, 0.28, 0.35, 0.5, 0.7)


class Matches:
    """Finds entries after the longest suffix of a text that occurs in the datastores.

    Args:
        suffixes: The suffix index of each datastore, and the number of its first entry.
        counts: How often each token occurs in each datastore, int64 [vocabulary].
        tails: The ends of documents of each datastore, and the number of its first entry.
        end_token: The token that follows the end of a document.
        most: A suffix that occurs more often in a datastore is no match; None for no maximum.
    """

    def __init__(
        self,
        suffixes: Sequence[tuple[SuffixIndex, int]],
        counts: Sequence[Array],
        tails: Sequence[tuple[_Tails, int]] = (),
        end_token: int = 0,
        most: int | None = None,
    ) -> None:
        self._suffixes, self._tails, self._end_token = suffixes, tails, end_token
        self._most = most
        self._rarity = _rarities(counts)

    @classmethod
    def of_stores(
        cls,
        stores: Sequence[Datastore],
        indexes: Indexes,
        exclude: tuple[str, ...] = (),
        *,
        shares: Sequence[float] | None = None,
        end_token: int | None = None,
        most: int | None = None,
    ) -> Matches:
        """Opens the matches of datastores, which are read as one corpus.

        Args:
            stores: The datastores. A learned memory has no text. To sort the suffixes of one that
                has no suffix index takes a second for a million tokens.
            indexes: Keeps what belongs to a datastore.
            exclude: Names of documents to leave out.
            shares: The share of each datastore in the vote; one with share 0 is left out.
            end_token: The token that follows the end of a document; None if ends do not count.
            most: A suffix that occurs more often in a datastore is no match.
        """
        suffixes: list[tuple[SuffixIndex, int]] = []
        counts: list[Array] = []
        tails: list[tuple[_Tails, int]] = []
        first = 0
        for number, store in enumerate(stores):
            if store.manifest.learned is None and (shares is None or shares[number] > 0.0):
                without = store.entries_of(exclude) if exclude else None
                index = partial(SuffixIndex, store, without)
                suffixes.append((indexes.once(store, ("suffixes", exclude), index), first))
                count = partial(np.bincount, np.asarray(store.tokens))
                counts.append(indexes.once(store, "token counts", count))
                if end_token is not None:
                    ends = partial(_Tails, store, without)
                    tails.append((indexes.once(store, ("tails", exclude), ends), first))
            first += len(store)
        return cls(suffixes, counts, tails, end_token or 0, most)

    def find(self, prefixes: Prefixes) -> Occurrences:
        """Finds the occurrences of the longest suffix of each text, with share 0.

        At the end of a document that ends like the text, `end_token` follows its last entry.
        """
        if not self._suffixes:
            return Occurrences.none(len(prefixes))
        parts = [index.find(prefixes, first, most=self._most) for index, first in self._suffixes]
        found = parts[0] if len(parts) == 1 else _joined(parts)
        for row in range(len(prefixes)) if self._tails else ():
            text = prefixes.tokens[prefixes.first[row] : prefixes.end[row]]
            tail = tuple(text[-_TAIL_TOKENS:].tolist())
            for tails, _ in self._tails:
                if tail in tails.places:
                    found = self._ended(found, row, text, tail)
                    break
        # A suffix that occurs too often is no match, and no shorter one takes its place.
        lengths = np.where(found.counts.numpy() > 0, found.lengths.numpy(), 0)
        # Padding before a text is no part of it.
        read = np.concatenate([[0], np.cumsum(prefixes.tokens >= 0)])
        coverage = lengths / np.maximum(1, read[prefixes.end] - read[prefixes.first])
        rows = np.repeat(np.arange(len(lengths)), lengths)
        last = np.repeat(prefixes.end - np.cumsum(lengths), lengths) + np.arange(len(rows))
        rarity = np.bincount(rows, self._rarity[prefixes.tokens[last]], len(lengths))
        return replace(
            found,
            lengths=torch.from_numpy(lengths),
            coverage=torch.from_numpy(coverage.astype(np.float32)),
            rarity=torch.from_numpy(rarity.astype(np.float32)),
        )

    def _ended(
        self, found: Occurrences, row: int, text: Array, tail: tuple[int, ...]
    ) -> Occurrences:
        """Lets the end token follow the documents that end with more of a text than occurs."""
        length = best = int(found.lengths[row])
        entries: list[int] = []
        for tails, first in self._tails:
            for entry, longest in tails.ending(text, tail, length):
                if longest > best:
                    best, entries = longest, []
                if longest == best:
                    entries.append(entry + first)
        if not entries:
            return found
        padded = found.padded(max(found.ids.shape[1], len(entries)))
        changed = Occurrences(*(one.clone() for one in padded.tensors()))
        changed.ids[row], changed.values[row], changed.log_weights[row] = -1, 0, -np.inf
        place = slice(len(entries))
        changed.ids[row, place] = torch.tensor(entries)
        changed.values[row, place] = self._end_token
        changed.log_weights[row, place] = -float(np.log(len(entries)))
        changed.lengths[row], changed.counts[row] = best, len(entries)
        return changed


class InfiniGram:
    """The ∞-gram of one or several datastores, which are read as one corpus.

    p(y) = count(suffix y) / count(suffix), of the longest suffix. Liu et al. (2024).
    """

    def __init__(self, stores: Sequence[Datastore], config: KNNConfig, indexes: Indexes) -> None:
        self._matches = Matches.of_stores(stores, indexes, config.exclude)
        given = config.infini_gram
        # Ascending lengths, the share below all lengths, and that from each on.
        lengths, shares = (_LENGTHS, _SHARES) if given == "auto" else ((1,), (float(given or 0.0),))
        self._lengths, self._shares = torch.tensor(lengths), torch.tensor([0.0, *shares])

    def find(self, prefixes: Prefixes) -> Occurrences:
        """The occurrences of the longest suffix of each text, in all datastores."""
        found = self._matches.find(prefixes)
        places = torch.bucketize(found.lengths, self._lengths, right=True)
        return replace(found, shares=self._shares[places])


def _rarities(counts: Sequence[Array]) -> Array:
    """-ln of each token's frequency, float32 [vocabulary of the corpus]."""
    total = np.zeros(max(1, *map(len, counts)) if counts else 1, np.int64)
    for part in counts:
        total[: len(part)] += part
    rarity: Array = -np.log(np.maximum(total, 1) / max(1, total.sum())).astype(np.float32)
    return rarity


class _Tails:
    """The ends of a datastore's documents, without those that are left out."""

    def __init__(self, store: Datastore, without: Array | None) -> None:
        self._tokens = np.asarray(store.tokens)
        first, length = np.asarray(store.documents.first), np.asarray(store.documents.length)
        # Documents that were joined do not end.
        long = (length > _TAIL_TOKENS) & (not store.manifest.windows.concatenate)
        self._first, self._end = first[long], (first + length)[long]
        self._entries = self._end - 2 - np.flatnonzero(long)
        shown = ~np.isin(self._entries, hidden_entries(store, without))
        self._first, self._end = self._first[shown], self._end[shown]
        self._entries = self._entries[shown]
        # The documents by their last tokens.
        self.places: dict[tuple[int, ...], list[int]] = {}
        last = self._tokens[self._end[:, None] - np.arange(_TAIL_TOKENS, 0, -1)]
        for place, tail in enumerate(map(tuple, last.tolist())):
            self.places.setdefault(tail, []).append(place)

    def ending(self, text: Array, tail: tuple[int, ...], length: int) -> Iterator[tuple[int, int]]:
        """Yields the last entry of each document with a longer end of the text, and that length."""
        for place in self.places.get(tail, ()):
            first, end = int(self._first[place]), int(self._end[place])
            most = min(len(text), end - first, max(_MAX_TAIL, length + 1))
            same = text[len(text) - most :][::-1] == self._tokens[end - most : end][::-1]
            longest = most if same.all() else int(same.argmin())
            if longest > length:
                yield int(self._entries[place]), longest


def _joined(parts: list[Occurrences]) -> Occurrences:
    """Joins the occurrences in several corpora, as if these were one corpus."""
    lengths = torch.stack([part.lengths for part in parts])
    longest = lengths.amax(dim=0)
    counts = torch.stack([part.counts for part in parts]) * (lengths == longest)
    total = counts.sum(dim=0)
    logs = (counts.double() / total.clamp(min=1)).log().float()
    weights = [
        (part.log_weights + log_share.unsqueeze(-1)).nan_to_num(nan=-np.inf, neginf=-np.inf)
        for part, log_share in zip(parts, logs, strict=True)
    ]
    log_weights = torch.cat(weights, dim=-1)
    ids = torch.cat([part.ids for part in parts], dim=-1)
    return Occurrences(
        ids.masked_fill(log_weights == -np.inf, -1),
        torch.cat([part.values for part in parts], dim=-1),
        log_weights,
        longest,
        total,
        parts[0].shares,
        parts[0].rarity,
        parts[0].coverage,
    )
