"""The tokens that are no text: those that end a sequence, and those that part one from another."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def end_tokens(config: Any, vocabulary: int) -> list[int]:
    """Returns the tokens that end a sequence, without those that the model has no score for."""
    return _tokens(config, ("eos_token_id",), vocabulary)


def control_tokens(model: nn.Module, vocabulary: int) -> list[int]:
    """Returns the tokens that begin, end or pad a sequence, or part the turns of a chat."""
    tokens = set()
    for name in ("generation_config", "config"):
        config = getattr(model, name, None)
        tokens |= set(_tokens(config, ("bos_token_id", "eos_token_id", "pad_token_id"), vocabulary))
    return sorted(tokens)


def _tokens(config: Any, names: tuple[str, ...], vocabulary: int) -> list[int]:
    tokens: list[Any] = []
    for name in names:
        own = getattr(config, name, None)
        own = own.flatten().tolist() if isinstance(own, Tensor) else own
        tokens += own if isinstance(own, (list, tuple)) else [own]
    return [int(one) for one in tokens if one is not None and 0 <= int(one) < vocabulary]
