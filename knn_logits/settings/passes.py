"""The settings of a pass over text: how it is cut in windows, and how much is read at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from knn_logits.errors import ConfigError
from knn_logits.settings.declaration import check_fields, documented, setting


@documented
@dataclass(frozen=True)
class WindowConfig:
    """How a document longer than the model's context is cut.

    Every token is predicted once, with at least `window - stride` tokens before it where the
    document has them (the sliding window of the published perplexities).
    """

    window: int | None = setting(
        None,
        "Size of the context window in tokens.",
        details="None takes the model's context length, but at most 1024.",
        least=2,
    )
    stride: int | None = setting(
        None, "Stride of the window in tokens.", details="None takes half the window.", least=1
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window is not None and self.stride is not None and self.stride > self.window:
            raise ConfigError(
                f"stride {self.stride} is larger than window {self.window}: "
                "tokens between two windows would be skipped; use a stride of at most the window"
            )


@dataclass(frozen=True)
class PassConfig:
    """How text runs through the model: its windows, and how much of it at a time."""

    window: WindowConfig = WindowConfig()
    concatenate: bool | None = setting(
        None,
        "Concatenate the documents into one stream. Defaults to the datastore's setting.",
        option="--concatenate/--no-concatenate",
    )
    batch_tokens: int | None = setting(None, "Number of tokens per forward pass.", least=1)

    def __post_init__(self) -> None:
        check_fields(self)

    def keywords(self) -> dict[str, Any]:
        """The given values, as keyword arguments of `build_datastore`, `evaluate` and others."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {
            name: value for name, value in values.items() if value not in (None, WindowConfig())
        }
