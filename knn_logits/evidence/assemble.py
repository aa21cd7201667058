"""Makes a `Trace` from recorded steps: chosen tokens, shares, and the passages around entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.engine.pieces import (
    TextAfter,
    decoded,
    parts_of,
    token_texts,
    whole_characters,
)
from knn_logits.engine.tokens import special_ids
from knn_logits.evidence.naming import names_alike
from knn_logits.evidence.passages import (
    Locate,
    NameOf,
    by_memory,
    by_model,
    document_share,
    passages_of,
    votes_by_document,
    where,
)
from knn_logits.evidence.recording import Recording, Step
from knn_logits.evidence.trace import (
    Candidate,
    Familiarity,
    NeighborTrace,
    SequenceTrace,
    TokenTrace,
    Trace,
)
from knn_logits.mixture.distribution import influences, log_p_knn_of, mix_one
from knn_logits.search.neighbors import Neighbors, nearest_nearness

MAX_NEIGHBORS = 5
# A token, the step and the row that it was chosen in, and its log p_LM, if that is known.
_Chosen = tuple[int, Step, int, float | None]
# With a larger share than this the memory wrote a word, and not the model.
_MOST = 0.5


def trace_recording(
    recording: Recording,
    sequences: Tensor,
    beam_indices: Tensor | None,
    tokenizer: Any,
    locate: Locate,
    name_of: NameOf,
    *,
    max_neighbors: int = MAX_NEIGHBORS,
    pads: Sequence[int] = (),
    prompt: str | None = None,
    near_within: float | None = None,
    familiarity: Callable[[int, int, int], Familiarity | None] = lambda row, first, last: None,
    rows: Collection[int] | int | None = None,
    unknown_names: Callable[[Any, str], tuple[str, ...]] = lambda tokenizer, prompt: (),
) -> Trace:
    """Traces what a `generate()` chose."""
    rows = {rows} if isinstance(rows, int) else rows
    first = recording.prompt.shape[1]
    with recording.lock:
        steps = dict(recording.steps)
    alike = {} if beam_indices is None else recording.alike()
    traced = []
    for number, ids in enumerate(sequences.tolist()):
        if rows is not None and number not in rows:
            continue
        chosen = []
        known = all(step.going_on is not None for step in steps.values())
        end = len(ids) if known else _end(ids, first, next(iter(pads), None), recording.ends)
        for position in range(first, end):
            row = number
            if beam_indices is not None:
                place = position - first
                row = int(beam_indices[number, place]) if place < beam_indices.shape[1] else -1
            step = steps.get(position)
            if row < 0 or step is None or not step.goes_on(row):
                break
            same = [row]
            if position in alike:
                same += (alike[position] == alike[position][row]).nonzero()[:, 0].tolist()
            said = (step.log_p_lm_of(one, ids[position], recording.ends) for one in same)
            log_p_lm = next((one for one in said if one is not None), None)
            chosen.append((ids[position], step, row, log_p_lm))
        start = next((place for place, one in enumerate(ids[:first]) if one not in pads), 0)
        one = _sequence(
            ids[start:],
            first - start,
            chosen,
            tokenizer,
            locate,
            name_of,
            max_neighbors,
            near_within,
        )
        row = int((recording.prompt == sequences[number, :first]).all(dim=-1).nonzero()[0, 0])
        # Nothing precedes a row's first token, and padding does not belong to its prompt.
        begin, end = start + 2, first
        if prompt is not None:
            begin, end = _span(tokenizer, ids[start:first], prompt)
            begin, end = start + begin + 1, start + end
            one = replace(one, prompt=prompt)
        familiar = familiarity(row, begin, end)
        if familiar is not None and familiar.near is False:
            familiar = replace(familiar, named=_is_named(one, chosen, tokenizer, locate))
        unknown = unknown_names(tokenizer, one.prompt)
        traced.append(replace(one, familiarity=familiar, unknown=unknown))
    return Trace(traced)


def _span(tokenizer: Any, ids: Sequence[int], text: str) -> tuple[int, int]:
    """Finds the tokens of the last place where a text stands, or else of no place."""
    ends = np.cumsum([len(one) for one in token_texts(tokenizer, ids)])
    start = decoded(tokenizer, ids).rfind(text.strip())
    if start < 0 or not text.strip():
        return len(ids), len(ids)
    last = start + len(text.strip()) - 1
    first, end = np.searchsorted(ends, [start, last], side="right").tolist()
    return first, end + 1


def _is_named(
    sequence: SequenceTrace, chosen: Sequence[_Chosen], tokenizer: Any, locate: Locate
) -> bool:
    """Whether the memory's first word is from a near passage that names what the prompt names."""
    for token, (written, step, row, _) in zip(sequence.tokens, chosen, strict=True):
        if token.influence >= _MOST and not token.special:
            if not token.near:
                return False
            weights = step.weights[row].masked_fill(
                step.neighbors.values[row] != written, -math.inf
            )
            entry = int(step.neighbors.ids[row, int(weights.argmax())])
            return names_alike(tokenizer, sequence.prompt, *locate(entry))
    return False


def with_trust(trace: Trace) -> Trace:
    """Notes where a gate gave the memory most of a word, which shows that it knows the prompt."""
    sequences = []
    for one in trace:
        known = one.familiarity
        trusted = any(token.influence >= _MOST and not token.special for token in one.tokens)
        sequences.append(replace(one, familiarity=known and replace(known, trusted=trusted)))
    return replace(trace, sequences=sequences)


def _end(ids: list[int], first: int, pad: int | None, ends: list[int]) -> int:
    """Finds the end of a row: before the padding, but after an end token that is also padding."""
    end = len(ids)
    while end > first and ids[end - 1] == pad:
        end -= 1
    return end + 1 if end < len(ids) and pad in ends else end


def _sequence(
    ids: list[int],
    first: int,
    chosen: list[_Chosen],
    tokenizer: Any,
    locate: Locate,
    name_of: NameOf,
    max_neighbors: int,
    near_within: float | None,
) -> SequenceTrace:
    words = token_texts(tokenizer, ids[: first + len(chosen)])
    tokens = []
    for place, (token, step, row, log_p_lm) in enumerate(chosen):
        one = slice(row, row + 1)
        tokens.append(
            trace_token(
                words[first + place],
                token,
                step.neighbors[one],
                step.weights[one],
                step.lmbda_of(row),
                log_p_lm,
                tokenizer,
                locate,
                name_of,
                max_neighbors,
                around=(ids[: first + place], ids[first + place + 1 : first + len(chosen)]),
                likeliest=step.likeliest_of(row),
                candidates=step.candidates[row] if step.candidates is not None else (),
                near_within=near_within,
            )
        )
    prompt = prompt_text(tokenizer, ids[:first], words[:first])
    return SequenceTrace(prompt, marked(tokens, tokenizer))


def marked(tokens: list[TokenTrace], tokenizer: Any) -> list[TokenTrace]:
    """Marks the special tokens among tokens."""
    special = special_ids(tokenizer)
    return [replace(one, special=True) if one.token_id in special else one for one in tokens]


def prompt_text(tokenizer: Any, ids: Sequence[int], words: Sequence[str]) -> str:
    """Returns the text of a prompt. A prompt that only starts a decoder has no text."""
    special = special_ids(tokenizer)
    return "" if special.issuperset(ids) else "".join(words)


def trace_token(
    word: str,
    token: int,
    neighbors: Neighbors,
    weights: Tensor,
    lmbda: float,
    log_p_lm: float | None,
    tokenizer: Any,
    locate: Locate,
    name_of: NameOf,
    max_neighbors: int,
    *,
    around: tuple[Sequence[int], Sequence[int]] = ((), ()),
    likeliest: tuple[int, float] | None = None,
    candidates: Sequence[tuple[int, float, float, float]] = (),
    near_within: float | None = None,
) -> TokenTrace:
    """Traces one token: its shares and its main neighbors."""
    if not bool((weights > float("-inf")).any()):
        lmbda = 0.0
    retrieval = _retrieval(neighbors)
    if log_p_lm is None:
        return TokenTrace(word, token, None, None, None, lmbda, 0.0, retrieval=retrieval)
    weights = weights.double()
    chosen = torch.tensor([token], device=weights.device)
    log_p_knn = log_p_knn_of(weights, neighbors.values, chosen)
    share = torch.full_like(log_p_knn, lmbda)
    log_p = mix_one(torch.full_like(log_p_knn, log_p_lm), log_p_knn, share)
    shares = influences(weights, neighbors.values, chosen, log_p, share)[0]
    by_entry, ids = shares.cpu().numpy(), neighbors.ids[0].cpu().numpy()
    votes = weights[0].exp().cpu().numpy()
    twice = _found_twice(neighbors)
    for other, column in twice.items():
        # One entry is one passage, with both of its votes.
        by_entry[column] += by_entry[other]
        votes[column] += votes[other]
        by_entry[other] = 0.0
    occurrence = {column: other for other, column in twice.items()}
    documents = votes_by_document(ids, by_entry, locate)
    before, after = around
    text_after = TextAfter(tokenizer, before)
    kept = passages_of(documents, by_entry, after, max_neighbors)
    return TokenTrace(
        token=word,
        token_id=token,
        p=math.exp(float(log_p)),
        p_lm=math.exp(log_p_lm),
        p_knn=math.exp(float(log_p_knn)),
        lmbda=lmbda,
        influence=float(shares.sum()),
        neighbors=[
            _neighbor(
                neighbors,
                column,
                occurrence.get(column, column),
                (float(votes[column]), float(by_entry[column])),
                tokenizer,
                locate,
                name_of,
            )
            for column in kept
        ],
        retrieval=retrieval,
        documents=[document_share(one, name_of) for one in documents],
        by_model=by_model(token, likeliest, text_after),
        by_memory=by_memory(token, neighbors, weights, tokenizer, text_after, locate, name_of),
        candidates=[
            Candidate(text_after(one), one, p, p_lm, p_knn) for one, p, p_lm, p_knn in candidates
        ],
        near=None if near_within is None else bool(nearest_nearness(neighbors)[0] >= near_within),
    )


def _retrieval(neighbors: Neighbors) -> str:
    """Says how the neighbors of a step were found, which are one row."""
    if neighbors.searched is None or bool(neighbors.searched[0]):
        return "search"
    found = (
        neighbors.mask if neighbors.matched is None else neighbors.mask & (neighbors.matched < 1)
    )
    return "pointers" if bool(found.any()) else "skipped"


def _found_twice(neighbors: Neighbors) -> dict[int, int]:
    """Finds the entries of a step that were found by their key and word for word as well."""
    if neighbors.matched is None:
        return {}
    ids, matched = neighbors.ids[0].tolist(), neighbors.matched[0].tolist()
    columns = range(len(ids))
    by_key = {ids[one]: one for one in columns if not matched[one] and ids[one] >= 0}
    return {one: by_key[ids[one]] for one in columns if matched[one] and ids[one] in by_key}


def _neighbor(
    neighbors: Neighbors,
    column: int,
    occurrence: int,
    shares: tuple[float, float],
    tokenizer: Any,
    locate: Locate,
    name_of: NameOf,
) -> NeighborTrace:
    store, entry = locate(int(neighbors.ids[0, column]))
    passage = store.passage(entry)
    # The tokens that start and end a document for the model are not part of its text.
    special = special_ids(tokenizer)
    before = [token for token in passage.before if token not in special]
    after = [token for token in passage.after if token not in special]
    ids = [*before, passage.token, *after]
    first, end = whole_characters(tokenizer, ids, len(before), len(after))
    here = len(before) - first
    text, word, rest = parts_of(tokenizer, ids[first:end], (here, here + 1))
    title, uri = where(store, entry, tokenizer)
    matched = 0 if neighbors.matched is None else int(neighbors.matched[0, occurrence])
    by_key = neighbors.matched is None or not int(neighbors.matched[0, column])
    weight, influence = shares
    return NeighborTrace(
        # A document may have bytes that are no character.
        before=text.lstrip("\ufffd"),
        word=word,
        after=rest.rstrip("\ufffd"),
        document=passage.document.id,
        title=title,
        uri=uri,
        store=name_of(store),
        entry=entry,
        weight=weight,
        distance=float(neighbors.distances[0, column]) if by_key else None,
        influence=influence,
        source=passage.document.source,
        matched=matched or None,
    )
