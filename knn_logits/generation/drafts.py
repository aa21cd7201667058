"""Greedy search and sampling with drafts: one forward pass verifies several tokens.

The pass reads the latest token and a draft after it. The scores of each position go through the
same processors as without drafts, and a token is chosen from them in the same way. The draft is
accepted as far as it agrees with the chosen tokens. So greedy text is the same as without drafts,
but for rounding.
Sampled text has the same distribution, since each token is drawn from its own conditional one.

Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding". The drafts are
those of Saxena (2023), "Prompt Lookup Decoding", which need no second model.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import StopStringCriteria

from knn_logits.engine.hooks import CACHE_NAME
from knn_logits.engine.model_loading import rounds_by_pass
from knn_logits.evidence.records import LEAST_INFLUENCE
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import Vote

# The most tokens of a draft.
MAX_DRAFT = 48
# A draft ends where the chance that all its tokens are accepted falls below this.
_LEAST_CHANCE = 0.35
# The rate below which a source is asked once in a number of steps only, to see whether it has
# recovered, and this number.
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
            return MAX_DRAFT
        return max(1, min(MAX_DRAFT, int(math.log(_LEAST_CHANCE) / math.log(self.rate))))

    def learn(self, drafted: int, accepted: int) -> None:
        """Notes how successful a draft was."""
        tested = min(drafted, accepted + 1)
        self.rate += (1 - (1 - _MEMORY) ** tested) * (accepted / tested - self.rate)


class Drafter:
    """Makes drafts for one text. At each step the first source that has a draft gives it.

    In half precision or quantised, a pass over several tokens rounds otherwise than passes over
    one, which changes a text every few hundred tokens. So a text that is the model's own, where λ
    is about 0, gets no drafts there: it stays the same token by token.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._only_followed = rounds_by_pass(memory.model)
        self._sources = {"memory": Source(0.7), "text": Source(0.4)}
        self._latest: tuple[Source, int] | None = None

    def draft(self, ids: Sequence[int], vote: Vote | None, room: int = MAX_DRAFT) -> list[int]:
        drafted: list[int] = []
        self._latest = None
        if self._only_followed and (vote is None or vote.influence(0, ids[-1]) < LEAST_INFLUENCE):
            return drafted
        for name, source in self._sources.items():
            most = source.length()
            if name == "memory" and vote is not None:
                most = max(most, _matched(vote, ids[-1]))
            most = min(most, room, MAX_DRAFT)
            if most > 0:
                if name == "text":
                    drafted = self.from_text(ids, most)
                elif vote is not None:
                    drafted = from_memory(self._memory, vote, ids[-1], most)
            if drafted:
                self._latest = source, len(drafted)
                return drafted
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


def _matched(vote: Vote, token: int) -> int:
    """How many tokens the text shares with a passage that voted for its last one; 0 if unknown.

    A text that has followed a passage for long goes on so, whatever earlier drafts were like.
    """
    matched = vote.neighbors.matched
    if matched is None:
        return 0
    return int((matched[0] * (vote.neighbors.values[0] == token)).max()) if matched.numel() else 0


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
    CACHE_NAME,
    "attention_mask",
    "cache_position",
    "logits_to_keep",
    "position_ids",
    "use_cache",
}


class DraftedDecoding:
    """The decoding loop, for the argument `custom_generate` of transformers.

    Args:
        draft: Returns a draft for a text, of a number of tokens at most.
        learn: Is told how many tokens of the latest draft were accepted.
        expect: Is told the scores of a draft's pass, [1 + drafted, vocabulary], beforehand.
        streamer: As `generate()` takes it.
    """

    def __init__(
        self,
        draft: Callable[[Sequence[int], int], list[int]],
        learn: Callable[[int], None],
        expect: Callable[[Tensor], None],
        streamer: Any = None,
    ) -> None:
        self._draft, self._learn, self._expect = draft, learn, expect
        self._streamer, self.passes = streamer, 0

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
        asked = generation_config.return_dict_in_generate
        outputs: dict[str, Any] = {
            name: () if asked and getattr(generation_config, f"output_{name}") else None
            for name in ("scores", "logits")
        }
        passes = Passes(model, model_kwargs, input_ids)
        prompt, text, fresh = input_ids, input_ids[0].tolist(), input_ids[:, passes.read :]
        drafted: list[int] = []
        longest = generation_config.max_length or len(text) + sys.maxsize
        done = False
        while not done:
            rows = passes.logits(fresh, len(drafted)) if passes.possible else None
            if rows is None:
                output = type(model)._sample(
                    model,
                    prompt,
                    logits_processor=logits_processor,
                    stopping_criteria=stopping_criteria,
                    generation_config=generation_config,
                    streamer=self._streamer,
                    **model_kwargs,
                )
                self.passes = getattr(output, "sequences", output).shape[1] - prompt.shape[1] - 1
                return output
            if drafted:
                self._expect(rows[0].to(input_ids.device))
            chosen: list[int] = []
            for place in range(len(drafted) + 1):
                raw = rows[:, place].to(torch.float32, copy=True).to(input_ids.device)
                processed = logits_processor(input_ids, raw)
                if not generation_config.do_sample:
                    token = processed.max(dim=-1).indices  # the first of equal ones
                else:
                    token = torch.multinomial(processed.softmax(dim=-1), num_samples=1)[:, 0]
                input_ids = torch.cat([input_ids, token[:, None]], dim=-1)
                for name, tensor in (("scores", processed), ("logits", raw)):
                    if outputs[name] is not None:
                        outputs[name] += (tensor,)
                if self._streamer is not None:
                    self._streamer.put(token.cpu())
                chosen.append(int(token))
                done = bool(stopping_criteria(input_ids, outputs["scores"]).all())
                if done or place == len(drafted) or chosen[-1] != drafted[place]:
                    break
            self._learn(len(chosen) - 1)
            passes.forget(len(drafted) - len(chosen) + 1)
            text += chosen
            if not done:
                # A pass is no longer than what may still be written.
                drafted = self._draft(text, longest - len(text) - 1)
                fresh = torch.tensor([[text[-1], *drafted]], device=input_ids.device)
                self.passes += 1
        if self._streamer is not None:
            self._streamer.end()
        if not asked:
            return input_ids
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        result: Any = GenerateDecoderOnlyOutput
        return result(sequences=input_ids, **{CACHE_NAME: passes.cache}, **outputs)


class Passes:
    """A model's passes over the tokens of one text, whose positions go on as in `generate()`."""

    def __init__(self, model: Any, settings: dict[str, Any], prompt: Tensor) -> None:
        self._model, self._length = model, prompt.shape[1]
        self._parameters = inspect.signature(model.forward).parameters
        self.possible = _ARGUMENTS.issuperset(settings) and settings.get("use_cache", True)
        self.cache = settings.get(CACHE_NAME)
        self.read = 0 if self.cache is None else int(self.cache.get_seq_length())
        self._positions: Tensor | None = settings.get("position_ids")
        if self._positions is None and "position_ids" in self._parameters:
            self._positions = torch.arange(self._length, device=prompt.device)[None]

    def logits(self, fresh: Tensor, drafted: int) -> Tensor | None:
        """Reads tokens, and scores the last `1 + drafted` of them; None without a cache."""
        length = fresh.shape[1]
        self.read += length
        after = self.read - self._length
        arguments: dict[str, Any] = {}
        if self._positions is not None:
            steps = torch.arange(after - length + 1, after + 1, device=self._positions.device)
            positions = self._positions[..., -1:] + steps
            arguments["position_ids"] = positions if after else self._positions[..., -length:]
        if "logits_to_keep" in self._parameters:
            arguments["logits_to_keep"] = drafted + 1
        outputs = self._model(
            input_ids=fresh,
            attention_mask=fresh.new_ones(1, self.read),
            use_cache=True,
            return_dict=True,
            **{CACHE_NAME: self.cache},
            **arguments,
        )
        self.cache = getattr(outputs, CACHE_NAME, None)
        # A few old models have no cache.
        return None if self.cache is None else outputs.logits[:, -drafted - 1 :]

    def forget(self, tokens: int) -> None:
        """Removes the latest tokens from the cache, which has full attention."""
        if tokens:
            self.cache.crop(-tokens)  # type: ignore[union-attr]
            self.read -= tokens


def arguments_for_drafts(model: Any, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments of a `generate()` that uses drafts; None where it cannot."""
    # The criterion that `stop_strings` stands for takes its place.
    strings, tokenizer = arguments.get("stop_strings"), arguments.get("tokenizer")
    if strings is not None and tokenizer is not None:
        stop = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
        criteria = [*(arguments.get("stopping_criteria") or ()), stop]
        arguments = arguments | {"stopping_criteria": criteria}
        del arguments["stop_strings"], arguments["tokenizer"]
    # The settings that the arguments leave open are the model's.
    settings: dict[str, Any] = {}
    for config in (getattr(model, "generation_config", None), arguments.get("generation_config")):
        values = {} if config is None else config.to_dict()
        settings |= {name: value for name, value in values.items() if value is not None}
    settings |= arguments
    return arguments if can_draft(model, arguments.get("input_ids"), settings) else None


def can_forget(model: Any) -> bool:
    """Whether what a causal model read last can be removed from its cache."""
    if not callable(getattr(model, "_sample", None)) or getattr(model, "_is_stateful", False):
        return False
    text_config = model.config.get_text_config()
    types = getattr(text_config, "layer_types", None) or ()
    slides = not types and getattr(text_config, "sliding_window", None)
    partial = any(layer != "full_attention" for layer in types)
    return not (slides or partial or model.config.is_encoder_decoder)


def can_draft(model: Any, input_ids: Any, settings: dict[str, Any]) -> bool:
    if not isinstance(input_ids, Tensor) or len(input_ids) != 1 or not can_forget(model):
        return False
    # A static cache cannot be cropped.
    cache = settings.get(CACHE_NAME, settings.get("past_key_values"))
    if getattr(cache, "is_compileable", False):
        return False
    mask = settings.get("attention_mask")
    if isinstance(mask, Tensor) and not bool(mask.all()):
        return False
    for name, plain in (
        ("num_beams", 1),
        ("num_return_sequences", 1),
        ("num_beam_groups", 1),
        ("use_cache", True),
        ("guidance_scale", 1.0),
        ("output_attentions", False),
        ("output_hidden_states", False),
        ("token_healing", False),
    ):
        if settings.get(name, plain) not in (None, plain):
            return False
    excluded = (
        "assistant_model",
        "cache_implementation",
        "constraints",
        "custom_generate",
        "dola_layers",
        "force_words_ids",
        "inputs_embeds",
        "penalty_alpha",
        "prompt_lookup_num_tokens",
        "stop_strings",
    )
    return all(settings.get(name) is None for name in excluded)
