"""Recognises attention sinks, which take no part in a vote, from the datastore's own files.

The state after a text's first token is then nearly the same for every word (Xiao et al. 2024), and
would let every text vote for the usual second token of the documents.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knn_logits.locks import Copies, cached_property
from knn_logits.store.datastore import Datastore
from knn_logits.store.layout import CANARY_KEYS

# The least distance of a sink from the states within a text, as a multiple of that between these.
# SmolLM2: 15 and more. Models without a sink: up to 1.1.
_APART = 4.0
# A state is a sink within this share of the usual squared distance between sink and other states.
_WITHIN = 0.4


@dataclass(frozen=True)
class Sink:
    """Where the sink states of a model lie."""

    center: Tensor  # float32 [dim]
    radius: float  # the largest squared distance of a sink state from the center
    entries: Tensor  # bool [entries], whose key is the state after a single token

    def holds(self, states: Tensor) -> Tensor:
        """Whether each state is a sink, bool [rows], for states [rows, dim]."""
        apart = states.float() - self._copies.at(states.device, "center")
        return apart.square().sum(dim=-1) <= self.radius

    def among(self, ids: Tensor) -> Tensor:
        """Whether each entry is a sink's, bool [rows, k], for ids int64 [rows, k]."""
        return self._copies.at(ids.device, "entries")[ids.clamp(min=0)]

    @cached_property
    def _copies(self) -> Copies:
        return Copies(center=self.center, entries=self.entries)


def find_sink(store: Datastore) -> Sink | None:
    """The sink states of the model that built a datastore, if it has any."""
    canary = store.checks.get(CANARY_KEYS)
    if canary is None or len(canary) < 4 or store.manifest.pairs is not None:
        return None
    first, rest = torch.from_numpy(canary[:1]).double(), torch.from_numpy(canary[1:]).double()
    usual = float(torch.pdist(rest).square().median())
    distances = torch.cdist(first, rest).square()
    if float(distances.min()) <= _APART * usual:
        return None
    entries = torch.zeros(len(store), dtype=torch.bool)
    if store.manifest.learned is None:
        windows = store.manifest.windows
        entries[store.contexts.first_states(windows.window, windows.stride)] = True
    return Sink(first[0].float(), _WITHIN * float(distances.median()), entries)
