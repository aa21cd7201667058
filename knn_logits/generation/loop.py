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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

# Arguments of a causal model's pass besides the ids. With any other, no drafts are used.
_KNOWN = {
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
    """The decoding loop, for the argument `custom_generate` of transformers.

    Args:
        draft: Returns tokens that may come next, given the ids of a text.
        learn: A callback that is told how many of the drafted tokens were accepted.
        streamer: A streamer that receives every chosen token, if any.

    Attributes:
        passes: Number of forward passes after the prompt's.
    """

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
        unknown = [one for one in model_kwargs if one not in _KNOWN]
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
        keeps_some = "logits_to_keep" in accepted_names
        places = _Places(model_kwargs, input_ids, "position_ids" in accepted_names)
        while True:
            outputs = model(
                input_ids=fresh,
                attention_mask=input_ids.new_ones(1, len(text) + len(drafted)),
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
                **places.of(fresh.shape[1], len(text) + len(drafted)),
                **({"logits_to_keep": len(drafted) + 1} if keeps_some else {}),
            )
            cache = getattr(outputs, "past_key_values", None)
            if cache is None:
                # A few old models have no cache.
                return without_drafts()
            chosen: list[int] = []
            for place in range(len(drafted) + 1):
                own = outputs.logits[:, place - len(drafted) - 1].to(torch.float32, copy=True)
                own = own.to(input_ids.device)
                processed = logits_processor(input_ids, own)
                token = _choose(processed, generation_config.do_sample)
                input_ids = torch.cat([input_ids, token[:, None]], dim=-1)
                if wants_dict and generation_config.output_scores:
                    scores += (processed,)
                if wants_dict and generation_config.output_logits:
                    logits += (own,)
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
    """The positions and the types of tokens, which go on after the prompt as in `generate()`.

    Args:
        model_kwargs: The arguments of the prompt's pass.
        prompt: int64 [1, length].
        has_positions: Whether the model takes positions.
    """

    def __init__(self, model_kwargs: dict[str, Any], prompt: Tensor, has_positions: bool) -> None:
        self._length = prompt.shape[1]
        self._types: Tensor | None = model_kwargs.get("token_type_ids")
        self._positions: Tensor | None = model_kwargs.get("position_ids")
        if self._positions is None and has_positions:
            self._positions = torch.arange(self._length, device=prompt.device)[None]

    def of(self, tokens: int, end: int) -> dict[str, Tensor]:
        """Returns arguments for the last tokens of a text.

        Args:
            tokens: Number of these tokens.
            end: Length of the text. If it is the prompt's, the tokens are the prompt.
        """
        found, after = {}, end - self._length
        if self._positions is not None:
            steps = torch.arange(after - tokens + 1, after + 1, device=self._positions.device)
            going_on = self._positions[..., -1:] + steps
            found["position_ids"] = going_on if after else self._positions
        if self._types is not None:
            going_on = self._types[:, -1:].expand(-1, tokens)
            found["token_type_ids"] = going_on if after else self._types
        return found


def _choose(scores: Tensor, do_sample: bool) -> Tensor:
    """Chooses the next token as transformers does, int64 [1]."""
    if not do_sample:
        return scores.argmax(dim=-1)
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)[:, 0]


def _forget(cache: Any, tokens: int) -> None:
    """Removes the latest tokens from a cache with full attention."""
    if tokens:
        cache.crop(-tokens)
