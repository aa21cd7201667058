"""Refuses continuous batching, which ignores logits processors, while one reads a model."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

from torch import nn

from knn_logits.errors import ModelError

_NAME = "generate_batch"


class _Refusal:
    """Stands for a model's `generate_batch`, and counts the processors that asked for this."""

    def __init__(self, model: nn.Module) -> None:
        self.attached = 0
        self.model = weakref.ref(model)

    def __reduce__(self) -> tuple[Any, ...]:
        # If a model is copied while a processor is attached, no processor is attached to the copy.
        return getattr, (self.model(), _NAME)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise ModelError(
            'continuous batching (cache_implementation="paged", generate_batch) ignores logits '
            "processors, so kNN would have no effect: disable it, or close() the "
            "KNNLogitsProcessor"
        )


def refuse_paged(model: nn.Module) -> None:
    """Makes the model's continuous batching raise `ModelError` until `allow_paged`."""
    if not hasattr(model, _NAME):
        return
    if not isinstance(vars(model).get(_NAME), _Refusal):
        setattr(model, _NAME, _Refusal(model))
    vars(model)[_NAME].attached += 1


def allow_paged(model: nn.Module) -> None:
    """Undoes one call of `refuse_paged`."""
    refusal = vars(model).get(_NAME)
    if isinstance(refusal, _Refusal):
        refusal.attached -= 1
        if refusal.attached <= 0:
            delattr(model, _NAME)
