"""Makes a `Trace` from votes: chosen tokens, shares, and the passages around entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.pieces import InnerText, TextAfter, parts_of, token_texts, whole_characters
from knn_logits.engine.tokens import special_ids
from knn_logits.evidence.quotation import Difference, Quotations
from knn_logits.evidence.recording import Chosen, Recording
from knn_logits.evidence.records import (
    Candidate,
    Contradiction,
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
)
from knn_logits.evidence.token_documents import passages_of, votes_by_document, where
from knn_logits.evidence.trace import Trace
from knn_logits.locks import cached_property
from knn_logits.metrics import as_distance
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import influences, log_p_knn_of, mix_row
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.datastore import Datastore

MAX_NEIGHBORS = 5
# Number of tokens before and after a token that decide its spelling and the passage that is shown.
AROUND = 64
# Number of tokens after the word of a passage.
_AFTER = 11


@dataclass(frozen=True)
class Mixed:
    """The mixture's probabilities of one chosen token, float64."""

    lmbda: float
    log_p_knn: float
    log_p: float
    votes: Array  # [k], w_i
    influences: Array  # [k]

    @classmethod
    def of(
        cls, weights: Tensor, values: Tensor, chosen: Tensor, log_p_lm: Tensor, lmbdas: Tensor
    ) -> list[Mixed]:
        """Mixes the votes of some rows, [rows, k], with log p_LM of the chosen tokens, [rows]."""
        weights = weights.double()
        log_p_knn = log_p_knn_of(weights, values, chosen)
        lmbdas = lmbdas.double().masked_fill(~(weights > -math.inf).any(dim=-1), 0.0)
        log_p = mix_row(log_p_lm.double(), log_p_knn, lmbdas)
        shares = influences(weights, values, chosen, log_p, lmbdas)
        numbers = (column.tolist() for column in (lmbdas, log_p_knn, log_p))
        arrays = (rows.cpu().numpy() for rows in (weights.exp(), shares))
        return [cls(*row) for row in zip(*numbers, *arrays, strict=True)]


@dataclass(frozen=True)
class Tracer:
    """Traces tokens that a memory voted on."""

    memory: Memory
    tokenizer: Any
    max_neighbors: int = MAX_NEIGHBORS

    @cached_property
    def _special(self) -> set[int]:
        return special_ids(self.tokenizer)

    def token(
        self,
        word: str,
        chosen: Chosen,
        before: Sequence[int],
        after: Sequence[int],
        mixed: Mixed | None = None,
    ) -> TokenTrace:
        """Traces one token; `mixed` is of this one row, if it was computed for many at once."""
        neighbors, weights, token = chosen.neighbors, chosen.log_weights, chosen.token
        searched = neighbors.searched is None or bool(neighbors.searched[0])
        retrieval = "search" if searched else "pointers"
        special = token in self._special
        if chosen.log_p_lm is None:
            lmbda = chosen.lmbda if bool((weights > -math.inf).any()) else 0.0
            return TokenTrace(
                word, token, None, None, None, lmbda, 0.0, retrieval=retrieval, special=special
            )
        if mixed is None:
            chosen_token = torch.tensor([token], device=weights.device)
            numbers = torch.tensor([chosen.log_p_lm, chosen.lmbda], dtype=torch.double)
            log_p_lm, lmbdas = numbers.to(weights.device).split(1)
            mixed = Mixed.of(weights, neighbors.values, chosen_token, log_p_lm, lmbdas)[0]
        by_entry, ids = mixed.influences, neighbors.ids[0].cpu().numpy()
        influence = float(by_entry.sum())
        votes, occurrences = mixed.votes, _occurrences(neighbors)
        if occurrences:
            by_entry, votes = by_entry.copy(), votes.copy()
        for column, other in occurrences.items():
            # One entry is one passage, with both of its votes.
            by_entry[column] += by_entry[other]
            votes[column] += votes[other]
            by_entry[other] = 0.0
        documents = votes_by_document(ids, by_entry, self.memory.retriever.locate)
        text_after = TextAfter(self.tokenizer, before)
        by_model = None
        if chosen.likeliest is not None and chosen.likeliest[0] != token:
            by_model = Rival(text_after(chosen.likeliest[0]), math.exp(chosen.likeliest[1]))
        nearness = neighbors.nearness[0].cpu().numpy()
        matched = np.zeros(len(ids), int)
        if neighbors.matched is not None:
            matched = neighbors.matched[0].cpu().numpy()
        passages = []
        for column in passages_of(documents, by_entry, after, self.max_neighbors):
            store, entry = self.memory.retriever.locate(int(ids[column]))
            distance = float(as_distance(nearness[column], neighbors.metric))
            passage = self.passage(
                store, entry, float(votes[column]), influence=float(by_entry[column])
            )
            passages.append(
                replace(
                    passage,
                    # The ∞-gram compares no keys.
                    distance=distance if math.isfinite(distance) else None,
                    matched=int(matched[occurrences.get(column, column)]) or None,
                )
            )
        return TokenTrace(
            token=word,
            token_id=token,
            p=math.exp(mixed.log_p),
            p_lm=math.exp(chosen.log_p_lm),
            p_knn=math.exp(mixed.log_p_knn),
            lmbda=mixed.lmbda,
            influence=influence,
            neighbors=passages,
            retrieval=retrieval,
            documents=[_share_of(self.memory, *votes[:3]) for votes in documents],
            by_model=by_model,
            candidates=[Candidate(text_after(votes), votes, *p) for votes, *p in chosen.candidates],
            special=special,
        )

    def passage(
        self, store: Datastore, entry: int, weight: float, *, length: int = 1, influence: float = 0
    ) -> NeighborTrace:
        """The passage around an entry; its word has `length` tokens, from the entry on."""
        passage = store.passage(entry, after=_AFTER + length)
        # The tokens that start and end a document for the model are not part of its text.
        special = self._special
        before, after = (
            [token for token in part if token not in special]
            for part in (passage.before, passage.after)
        )
        ids = [*before, passage.token, *after]
        first, end = whole_characters(self.tokenizer, ids, len(before), len(after))
        at = len(before) - first
        text, word, rest = parts_of(self.tokenizer, ids[first:end], (at, at + length))
        title, uri = where(store, entry, self.tokenizer)
        return NeighborTrace(
            # A document may have bytes that are no character.
            before=text.lstrip("\ufffd"),
            word=word,
            after=rest.rstrip("\ufffd"),
            document=passage.document.id,
            title=title,
            uri=uri,
            store=self.memory.name_of(store),
            entry=entry,
            weight=weight,
            distance=None,
            influence=influence,
            source=passage.document.source,
        )

    def sequence(self, ids: list[int], first: int, chosen: Sequence[Chosen]) -> SequenceTrace:
        """Traces the chosen tokens after a prompt of `first` tokens."""
        ids = ids[: first + len(chosen)]
        words = token_texts(self.tokenizer, ids)
        tokens = [
            self.token(words[at], choice, ids[:at], ids[at + 1 :])
            for at, choice in enumerate(chosen, start=first)
        ]
        # A prompt that only starts a decoder has no text.
        read = not self._special.issuperset(ids[:first])
        sequence = SequenceTrace("".join(words[:first]) if read else "", tokens)
        quotations = self.quotations(ids, first)
        if quotations is None:
            return sequence
        text = np.array(ids)
        for at, choice in enumerate(chosen, start=first):
            if choice.lmbda > 0.0:
                neighbors, weights = choice.neighbors.to("cpu"), choice.log_weights.cpu()
                quotations.look(text, at, neighbors, weights)
        return self.compared(sequence, ids, quotations)

    def quotations(self, ids: list[int], given: int = 0) -> Quotations | None:
        """Prepares a comparison of a text with its neighbors; None for other than causal models."""
        manifests = [store.manifest for store in self.memory.stores]
        if any(manifest.pairs or manifest.learned for manifest in manifests):
            return None
        text = InnerText(self.tokenizer, ids)
        return Quotations(self.memory.stores, text, self.memory.config.exclude, given)

    def compared(
        self, sequence: SequenceTrace, ids: list[int], quotations: Quotations
    ) -> SequenceTrace:
        """Adds to a trace which words a passage has in the same sentence, and which it has not."""
        tokens, found = list(sequence.tokens), list[Contradiction]()
        first = len(ids) - len(tokens)
        differences, same, elsewhere = quotations.compare(np.array(ids))
        for difference in differences:
            by_memory = self._rival(difference, ids[: difference.first])
            at = range(max(difference.first - first, 0), difference.last - first)
            for place in at:
                # White space in a token of its own is no word.
                if tokens[place].token.strip():
                    tokens[place] = replace(tokens[place], by_memory=by_memory)
            found.append(Contradiction(difference.words.strip(), at[0] if at else None, by_memory))
        unlike, elsewhere = (elsewhere, set()) if quotations.given else (set(), elsewhere)
        tokens = [
            replace(one, verbatim=at in same, elsewhere=at in elsewhere, unlike=at in unlike)
            for at, one in enumerate(tokens, start=first)
        ]
        return replace(sequence, tokens=tokens, contradictions=found)

    def _rival(self, difference: Difference, before: list[int]) -> Rival:
        """The words of a passage in place of those after the tokens before them."""
        store, p = self.memory.stores[difference.store], difference.p_knn
        words = store.tokens[difference.begin : difference.end].tolist()
        number = int(store.documents.at_token(difference.begin))
        # A document's first token is not an entry.
        begin = max(difference.begin, store.documents[number].first + 1)
        length = difference.end - begin
        entry = int(store.contexts.entries_of(np.array([begin]), np.ones(1, np.int64))[0])
        return Rival(
            parts_of(self.tokenizer, [*before, *words], (len(before),))[1],
            p,
            _share_of(self.memory, store, number, p),
            entry,
            self.passage(store, entry, p, length=length),
            length,
        )

    def recorded(
        self, recording: Recording, sequences: Tensor, *, pads: Sequence[int], prompt: str | None
    ) -> Trace:
        """Traces what a `generate()` chose, in rows between `pads`."""
        first = recording.prompt.shape[1]
        traced = []
        for number, ids in enumerate(sequences.tolist()):
            chosen = recording.chosen(ids, number, next(iter(pads), None))
            start = next((place for place, token in enumerate(ids[:first]) if token not in pads), 0)
            sequence = self.sequence(ids[start:], first - start, chosen)
            if prompt is not None:
                text, read = prompt.strip(), sequence.prompt.rstrip()
                apart = text in read and not read.endswith(text)
                sequence = replace(sequence, prompt=prompt, apart=apart)
            traced.append(sequence)
        return Trace(traced, self.memory.names)


def shares_by_document(memory: Memory, entries: Array, shares: Array) -> list[DocumentShare]:
    """Sums the shares of entries, [entries] each, by their documents, the largest first."""
    votes = votes_by_document(entries, shares, memory.retriever.locate)
    return [_share_of(memory, *one[:3]) for one in votes]


def _share_of(memory: Memory, store: Datastore, number: int, share: float) -> DocumentShare:
    document, name = store.documents[number], memory.name_of(store)
    return DocumentShare(name, document.id, document.title, document.uri, share)


def _occurrences(neighbors: Neighbors) -> dict[int, int]:
    """Finds entries that were found by their key and word for word: the columns of both."""
    if neighbors.matched is None:
        return {}
    ids, matched = neighbors.ids[0].tolist(), neighbors.matched[0].tolist()
    columns = range(len(ids))
    by_key = {ids[column]: column for column in columns if not matched[column] and ids[column] >= 0}
    return {
        by_key[ids[column]]: column
        for column in columns
        if matched[column] and ids[column] in by_key
    }
