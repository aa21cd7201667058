"""`Finding`: what a study found, as plain values: a table, a plot, and what a paper says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Plot:
    """A figure of one or several rows of numbers.

    Attributes:
        kind: Lines over numbers, or bars over names.
        x: The numbers or the names.
        series: Numbers by name, None where there is none.
        x_label: What x is.
        y_label: What the numbers are.
        log: Whether x is on a logarithmic scale.
        level: A line across, such as the model alone; None for none.
    """

    kind: Literal["lines", "bars"]
    x: Sequence[Any]
    series: dict[str, Sequence[float | None]]
    x_label: str
    y_label: str = "perplexity, held out"
    log: bool = False
    level: tuple[str, float] | None = None


@dataclass(frozen=True)
class Finding:
    """What a study found.

    Attributes:
        title: Of its section.
        paper: In one sentence, what a paper found.
        here: In one sentence, what was found here.
        holds: Whether the paper's finding holds here; None where that is no question.
        header: Of the table.
        rows: The table, numbers and words.
        plot: The figure; None for none.
        passages: Lines of text below it.
    """

    title: str
    paper: str
    here: str
    holds: bool | None
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    plot: Plot | None = None
    passages: Sequence[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Finding:
        """What `to_dict` gave."""
        plot = content["plot"]
        level = plot and plot["level"] and tuple(plot["level"])
        return cls(**{**content, "plot": plot and Plot(**{**plot, "level": level})})
