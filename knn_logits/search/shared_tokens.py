"""Counts how many tokens before an entry are the same as before the query."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.copies import Copies
from knn_logits.search.occurrences import Prefixes

# More shared tokens than these count the same.
MAX_SHARED_TOKENS = 8
_BACK = np.arange(0, -MAX_SHARED_TOKENS, -1) - 1


class SharedTokens:
    """Counts for `documents` and `contexts`, the first tokens of each, int64, ascending."""

    def __init__(self, tokens: Array, documents: Array, contexts: Array) -> None:
        before = np.full(len(tokens), MAX_SHARED_TOKENS, np.uint8)
        # A document may end before the next number of tokens, so the nearest beginning comes last.
        for number in reversed(range(MAX_SHARED_TOKENS)):
            before[documents[documents < len(tokens) - number] + number] = number
        # How many tokens of its document stand before each entry, and the last of them. The tokens
        # before that are the last ones before earlier entries.
        most = np.delete(before, contexts)
        last = np.delete(np.asarray(tokens), contexts[1:] - 1)[: len(most)].astype(np.int32)
        self._copies = Copies(most=torch.from_numpy(most), last=torch.from_numpy(last))

    def count(self, ids: Tensor, texts: Prefixes) -> Tensor:
        """Shared tokens of entries `ids` and each row's text, float32 [rows, k], 0 to 8."""
        places = texts.end[:, None] + _BACK
        # No token is negative, so what is before the beginning of a text agrees with nothing.
        tokens = np.append(texts.tokens, -1)
        # int32 [rows, 8], the last token first.
        ends = torch.from_numpy(tokens[np.where(places >= texts.first[:, None], places, -1)])
        ends = ends.to(ids.device, torch.int32, non_blocking=True)
        most, last = self._copies.at(ids.device, "most"), self._copies.at(ids.device, "last")
        if not len(last):
            return torch.zeros(ids.shape, device=ids.device)
        back = torch.arange(MAX_SHARED_TOKENS, device=ids.device)
        preceding = last[(ids.unsqueeze(-1) - back).clamp_(min=0)]
        same = preceding == ends.unsqueeze(1)
        same &= most[ids.clamp(min=0)].unsqueeze(-1) > back
        same &= (ids >= 0).unsqueeze(-1)
        return same.to(torch.int8).cumprod(dim=-1).sum(dim=-1).float()
