"""The interface of an engine: the calls of a causal language model of transformers.

Another engine derives from `GenerationMixin`, which brings `generate()`, processors and samplers.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

TRANSFORMERS = "transformers"


class Cache(Protocol):
    """The state of a model after one or several texts."""

    def get_seq_length(self) -> int:
        """The number of columns that were read, those of padding included."""

    def crop(self, max_length: int) -> None:
        """Forgets the columns after `max_length`; or as many as it says, if it is negative."""


class Output(Protocol):
    """The result of a pass."""

    logits: Tensor  # [rows, columns that were asked for, vocabulary]
    past_key_values: Cache | None


class Engine(Protocol):
    """A model with scores, a cache to cut, and key states that a forward hook takes."""

    config: Any  # `vocab_size`, `max_position_embeddings`, `is_encoder_decoder`
    generation_config: Any  # the tokens that begin, end and pad a text

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
    ) -> Output:
        """Reads further columns of texts, and scores the last `logits_to_keep`, or all for 0."""

    def get_decoder(self) -> nn.Module:
        """The module that reads the columns."""

    def generate(self, inputs: Tensor | None = None, **settings: Any) -> Any:
        """Continues texts, as `GenerationMixin.generate` of transformers does."""


@runtime_checkable
class NamesKeys(Protocol):
    """An engine that names its keys' places; `forward` may take `keys_only`, to end at the key."""

    def find_key(self, name: str) -> str:
        """The path of the module whose output is the key of this name."""


def rounds_by_pass(model: object) -> bool:
    """Whether a pass over several tokens rounds otherwise than passes over one."""
    dtype = getattr(model, "dtype", None)
    half = isinstance(dtype, torch.dtype) and dtype.itemsize < 4
    return half or bool(getattr(model, "rounds_by_pass", False))


def engine_of(model: object) -> str:
    """The name of the engine that runs a model."""
    return str(getattr(model, "engine", TRANSFORMERS))
