"""What an engine must offer. Everything above this folder runs on any model that has it.

An engine is called as a causal language model of transformers is, which is the first engine. The
class of another engine derives from `GenerationMixin`, and answers these calls; `generate()`,
logits processors, streams, samplers and stopping criteria then come with them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

TRANSFORMERS = "transformers"


class Cache(Protocol):
    """What a model has read of one or several texts."""

    def get_seq_length(self) -> int:
        """The number of columns that were read, those of padding included."""

    def crop(self, max_length: int) -> None:
        """Forgets the columns after `max_length`; or as many as it says, if it is negative."""


class Output(Protocol):
    """The result of a pass."""

    logits: Tensor  # [rows, columns that were asked for, vocabulary]
    past_key_values: Cache | None


class Engine(Protocol):
    """A model that gives tokens' scores, key states, and a cache that can be cut.

    The key states of a pass go through a module of `get_decoder()`, where a forward hook takes
    them, [rows, columns, dim]. `knn_logits.engine.location` finds that module.
    """

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
    """An engine whose keys' places no rule about PyTorch's modules can find.

    Its `forward` may take `keys_only`, for a pass that is over at the key. An attribute `engine`
    has its name for a datastore's manifest, and `precision` that of its weights.
    """

    def find_key(self, name: str) -> str:
        """The path of the module whose output is the key of this name."""


def rounds_by_pass(model: object) -> bool:
    """Whether a pass over several tokens rounds noticeably otherwise than passes over one.

    So it is in half precision, and with an engine that has an attribute `rounds_by_pass`.
    """
    dtype = getattr(model, "dtype", None)
    half = isinstance(dtype, torch.dtype) and dtype.itemsize < 4
    return half or bool(getattr(model, "rounds_by_pass", False))


def engine_of(model: object) -> str:
    """The name of the engine that runs a model."""
    return str(getattr(model, "engine", TRANSFORMERS))
