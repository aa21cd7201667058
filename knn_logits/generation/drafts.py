"""Greedy search and sampling with drafts: one forward pass verifies several tokens.

The pass reads the latest token and a draft after it. The scores of each position go through the
same processors as without drafts, and a token is chosen from them in the same way. The draft is
accepted as far as it agrees with the chosen tokens. So greedy text is the same as without drafts.
Sampled text has the same distribution, since each token is drawn from its own conditional one.

Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding". The drafts are
those of Saxena (2023), "Prompt Lookup Decoding", which need no second model.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import Vote

# The most tokens of a draft.
MOST = 24
# A draft ends where the chance that all its tokens are accepted falls below this.
_LEAST_CHANCE = 0.35
# A source with a lower rate is asked only once in so many steps, to see whether it has recovered.
_LEAST_RATE, _RARELY = 0.2, 12
# The weight of the latest draft in the rate.
_MEMORY = 0.3
# The number of neighbors that continue a draft, and the share of their weight that must agree on a
# token.
_FOLLOWED, _AGREEMENT = 16, 0.3
# The numbers of tokens of a suffix that is looked for earlier in the text.
_LONGEST_SUFFIX, _SHORTEST_SUFFIX = 6, 2


class Source:
    """The success of the drafts of one source."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._requests = 0

    def length(self) -> int:
        """The number of tokens that are worth drafting now."""
        self._requests += 1
        if self.rate < _LEAST_RATE:
            return 2 if self._requests % _RARELY == 0 else 0
        if self.rate > 0.99:
            return MOST
        return max(1, min(MOST, int(math.log(_LEAST_CHANCE) / math.log(self.rate))))

    def learn(self, drafted: int, accepted: int) -> None:
        """Notes how successful a draft was."""
        tested = min(drafted, accepted + 1)
        self.rate += (1 - (1 - _MEMORY) ** tested) * (accepted / tested - self.rate)


class Drafter:
    """Makes drafts for one text. At each step the first source that has a draft gives it."""

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory
        self._sources = {"memory": Source(0.7), "text": Source(0.4)}
        self._latest: tuple[Source, int] | None = None

    def draft(self, ids: Sequence[int], vote: Vote | None) -> list[int]:
        """Drafts the next tokens."""
        drafted: list[int] = []
        for name, source in self._sources.items():
            most = source.length()
            if most:
                if name == "text":
                    drafted = self.from_text(ids, most)
                elif vote is not None and self._memory is not None:
                    drafted = from_memory(self._memory, vote, ids[-1], most)
            if drafted:
                self._latest = source, len(drafted)
                return drafted
        self._latest = None
        return drafted

    def learn(self, accepted: int) -> None:
        """Notes how many tokens of the latest draft were accepted."""
        if self._latest is not None:
            source, drafted = self._latest
            source.learn(drafted, accepted)

    @staticmethod
    def from_text(ids: Sequence[int], most: int) -> list[int]:
        """Returns what followed the longest end of a text where it last occurred before."""
        text = np.asarray(ids, np.int64)
        length = len(text)
        before = np.flatnonzero(text[:-1] == text[-1])
        best, longest = -1, _SHORTEST_SUFFIX - 1
        for place in before[::-1].tolist():
            same = 1
            while same < min(_LONGEST_SUFFIX, place + 1) and (
                text[place - same] == text[length - 1 - same]
            ):
                same += 1
            if same > longest:
                best, longest = place, same
                if same == _LONGEST_SUFFIX:
                    break
        return [] if best < 0 else text[best + 1 : best + 1 + most].tolist()


def from_memory(memory: Memory, vote: Vote, token: int, most: int) -> list[int]:
    """Returns the continuation of the passages that voted for a text's last token."""
    columns = (vote.neighbors.values[0] == token).nonzero()[:, 0]
    if not len(columns):
        return []
    weights = vote.log_weights[0, columns]
    if len(columns) > _FOLLOWED:
        weights, order = weights.topk(_FOLLOWED)
        columns = columns[order]
    shares = weights.exp().tolist()
    passages = []
    for entry, share in zip(vote.neighbors.ids[0, columns].tolist(), shares, strict=True):
        if share > 0.0:
            store, number = memory.retriever.locate(entry)
            if store.manifest.learned is not None:
                continue  # nothing follows a learned row
            # At the end of a document this runs into the next one. That is fine for a draft.
            following = store.values[number + 1 : number + 1 + most]
            passages.append((share, following.tolist()))
    return _agreed(passages, most)


def _agreed(passages: list[tuple[float, list[int]]], most: int) -> list[int]:
    """Returns the tokens that most of the weight agrees on, up to the first disagreement."""
    total = sum(share for share, _ in passages)
    drafted: list[int] = []
    while passages and len(drafted) < most:
        place = len(drafted)
        votes: dict[int, float] = {}
        for share, tokens in passages:
            if place < len(tokens):
                votes[tokens[place]] = votes.get(tokens[place], 0.0) + share
        if not votes:
            break
        best = max(votes, key=lambda token: votes[token])
        if votes[best] < _AGREEMENT * total:
            break
        drafted.append(best)
        passages = [
            token for token in passages if place < len(token[1]) and token[1][place] == best
        ]
    return drafted


# Arguments of a causal model's pass besides the ids. With any other, no drafts are used.
_ARGUMENTS = {
    "attention_mask",
    "cache_position",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "token_type_ids",
    "use_cache",
}

Draft = Callable[[Sequence[int]], list[int]]
Learn = Callable[[int], None]


class DraftedDecoding:
    """The decoding loop, for the argument `custom_generate` of transformers."""

    def __init__(self, draft: Draft, learn: Learn, streamer: Any = None) -> None:
        self._draft, self._learn, self._streamer = draft, learn, streamer
        self.passes = 0

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Continues one text. `GenerationMixin._sample` of transformers explains the arguments."""
        unknown = [name for name in model_kwargs if name not in _ARGUMENTS]
        cache = model_kwargs.get("past_key_values")

        def without_drafts() -> Any:
            output = type(model)._sample(
                model,
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                streamer=self._streamer,
                **model_kwargs,
            )
            written = getattr(output, "sequences", output).shape[1] - input_ids.shape[1]
            self.passes = written - 1
            return output

        if unknown or not model_kwargs.get("use_cache", True):
            return without_drafts()
        wants_dict = generation_config.return_dict_in_generate
        scores: tuple[Tensor, ...] = ()
        logits: tuple[Tensor, ...] = ()
        # `knn_logits.engine.calls` reads this variable to learn which rows go on.
        unfinished_sequences = torch.ones(1, dtype=torch.long, device=input_ids.device)
        text: list[int] = input_ids[0].tolist()
        drafted: list[int] = []
        fresh = input_ids
        accepted_names = inspect.signature(model.forward).parameters
        takes_last_logits = "logits_to_keep" in accepted_names
        places = _Places(model_kwargs, input_ids, "position_ids" in accepted_names)
        while True:
            outputs = model(
                input_ids=fresh,
                attention_mask=input_ids.new_ones(1, len(text) + len(drafted)),
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
                **places.of(fresh.shape[1], len(text) + len(drafted)),
                **({"logits_to_keep": len(drafted) + 1} if takes_last_logits else {}),
            )
            cache = getattr(outputs, "past_key_values", None)
            if cache is None:
                # A few old models have no cache.
                return without_drafts()
            chosen: list[int] = []
            for place in range(len(drafted) + 1):
                raw = outputs.logits[:, place - len(drafted) - 1].to(torch.float32, copy=True)
                raw = raw.to(input_ids.device)
                processed = logits_processor(input_ids, raw)
                token = _choose(processed, generation_config.do_sample)
                input_ids = torch.cat([input_ids, token[:, None]], dim=-1)
                if wants_dict and generation_config.output_scores:
                    scores += (processed,)
                if wants_dict and generation_config.output_logits:
                    logits += (raw,)
                if self._streamer is not None:
                    self._streamer.put(token.cpu())
                chosen.append(int(token))
                # This is a new tensor each time, since somebody may still hold the one before.
                stops = stopping_criteria(input_ids, scores or None)
                unfinished_sequences = unfinished_sequences & ~stops
                done = not bool(unfinished_sequences.any())
                if done or place == len(drafted) or chosen[-1] != drafted[place]:
                    break
            accepted = len(chosen) - 1
            self._learn(accepted)
            _forget(cache, len(drafted) - accepted)
            text += chosen
            if done:
                break
            drafted = self._draft(text)
            fresh = torch.tensor([[text[-1], *drafted]], device=input_ids.device)
            self.passes += 1
        if self._streamer is not None:
            self._streamer.end()
        if not wants_dict:
            return input_ids
        result: Any = GenerateDecoderOnlyOutput
        return result(
            sequences=input_ids,
            scores=scores if generation_config.output_scores else None,
            logits=logits if generation_config.output_logits else None,
            past_key_values=cache,
        )


class _Places:
    """The positions and the types of tokens, which go on after the prompt as in `generate()`."""

    def __init__(self, model_kwargs: dict[str, Any], prompt: Tensor, has_positions: bool) -> None:
        self._length = prompt.shape[1]
        self._types: Tensor | None = model_kwargs.get("token_type_ids")
        self._positions: Tensor | None = model_kwargs.get("position_ids")
        if self._positions is None and has_positions:
            self._positions = torch.arange(self._length, device=prompt.device)[None]

    def of(self, tokens: int, end: int) -> dict[str, Tensor]:
        """Returns arguments for the last tokens of a text."""
        arguments, after = {}, end - self._length
        if self._positions is not None:
            steps = torch.arange(after - tokens + 1, after + 1, device=self._positions.device)
            going_on = self._positions[..., -1:] + steps
            arguments["position_ids"] = going_on if after else self._positions
        if self._types is not None:
            going_on = self._types[:, -1:].expand(-1, tokens)
            arguments["token_type_ids"] = going_on if after else self._types
        return arguments


def _choose(scores: Tensor, do_sample: bool) -> Tensor:
    """Chooses the next token as transformers does, int64 [1]."""
    if not do_sample:
        return scores.argmax(dim=-1)
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)[:, 0]


def _forget(cache: Any, tokens: int) -> None:
    """Removes the latest tokens from a cache with full attention."""
    if tokens:
        cache.crop(-tokens)
