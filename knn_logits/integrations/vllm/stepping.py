"""Mixes the votes of the memory into the scores of a step of vLLM, before it samples.

A grammar has masked its tokens by then, and penalties, temperature and log-probabilities follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.integrations.vllm.requests import Memories
from knn_logits.integrations.vllm.sources import Sources
from knn_logits.integrations.vllm.vllm_model import VLLMModel
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import Vote
from knn_logits.store.datastore import Datastore


@dataclass(frozen=True)
class Row:
    """A row of scores, and the text that it continues."""

    number: int  # its place among the scores
    request: str
    place: tuple[int, int]  # its token's place in the tokens that are sampled
    text: list[int]


class Stepping:
    """Attaches a memory to a model runner of vLLM. Its cache exists; no request is at work."""

    def __init__(self, runner: Any, datastores: Sequence[Datastore]) -> None:
        model = VLLMModel(runner)
        memory = Memory(model, list(datastores), device=runner.device)
        self._model, self._key, self._memories = model, memory.location.name, Memories(memory)
        self.sources = Sources(model.tokenizer)
        self._runner = runner
        self._states: Tensor | None = None
        # Sampled tokens are then known before the next step, also where steps overlap.
        runner.input_batch.logitsprocs_need_output_token_ids = True
        self._prepare_inputs, runner._prepare_inputs = runner._prepare_inputs, self._on_inputs
        self._sample_tokens, self._sample = runner.sample_tokens, runner._sample
        runner.sample_tokens, runner._sample = self._on_step, self._on_scores

    def _on_inputs(self, *given: Any) -> Any:
        prepared = self._prepare_inputs(*given)
        self._scored = prepared[0]  # the places of the tokens whose states the head reads
        return prepared

    def _on_step(self, grammar: Any) -> Any:
        # A later pass, which may be that of drafts, overwrites the states.
        ran = self._runner.execute_model_state is not None
        self._states = self._model.sampled(self._key, self._scored) if ran else None
        return self._sample_tokens(grammar)

    @torch.inference_mode()
    def _on_scores(self, logits: Tensor | None, drafts: Any) -> Any:
        states, self._states = self._states, None
        if logits is None or states is None:
            return self._sample(logits, drafts)
        self._runner.input_batch.update_async_output_token_ids()
        groups: dict[Memory, list[Row]] = defaultdict(list)
        for memory, row in self._rows(drafts):
            groups[memory].append(row)
        if not groups:
            return self._sample(logits, drafts)
        votes: list[tuple[Memory, Vote, list[Row]]] = []
        logits = logits.float()
        for memory, rows in groups.items():
            # A slice copies nothing.
            numbers: Any = slice(None)
            if len(rows) < len(logits):
                numbers = torch.tensor([row.number for row in rows], device=logits.device)
            scores = logits[numbers]
            _, vote = memory.step(states[numbers], _padded(rows), scores.log_softmax(-1))
            # Penalties change scores by their sign, so scores keep their scale.
            logits[numbers] = vote.mixed_into(scores)
            votes.append((memory, vote, rows))
        output = self._sample(logits, drafts)
        sampled = output.sampled_token_ids.cpu()
        for memory, vote, rows in votes:
            tokens = torch.stack([sampled[row.place] for row in rows]).long()
            self.sources.note(memory, vote, [row.request for row in rows], tokens)
        return output

    def _rows(self, drafts: Any) -> list[tuple[Memory, Row]]:
        """The rows that are sampled and ask a memory. A request has one more than its drafts."""
        runner, rows, first = self._runner, [], 0
        for place, request in enumerate(runner.input_batch.req_ids):
            state = runner.requests[request]
            count = 0 if drafts is None else drafts.num_draft_tokens[place]
            number, first = first, first + count + 1
            # A part of a prompt, whose token is dropped, or a prompt without tokens.
            if runner.discard_request_mask.np[place] or state.prompt_token_ids is None:
                continue
            if not hasattr(state, "knn_memory"):
                state.knn_memory = self._memories.of(state.sampling_params.extra_args)
            memory = state.knn_memory
            if memory is None:
                continue
            text = state.prompt_token_ids + state.output_token_ids
            ahead: list[int] = []
            if count:
                start = sum(drafts.num_draft_tokens[:place])
                ahead = drafts.draft_token_ids[start : start + count].tolist()
            for step in range(count + 1):
                row = Row(number + step, request, (place, step), text + ahead[:step])
                rows.append((memory, row))
        return rows


def _padded(rows: Sequence[Row]) -> Tensor:
    """The texts of rows, int64 [rows, length], with -1 before shorter ones."""
    longest = max(len(row.text) for row in rows)
    texts = np.full((len(rows), longest), -1, np.int64)
    for text, row in zip(texts, rows, strict=True):
        text[longest - len(row.text) :] = row.text
    return torch.from_numpy(texts)
