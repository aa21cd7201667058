"""A `Finding` is the result of a study: a table, a plot, and the paper's finding beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Plot:
    """A figure of one or several rows of numbers.

    Attributes:
        kind: "lines" over numbers, or "bars" over names.
        x: The numbers or the names.
        series: The numbers of each series by its name; None if a number is missing.
        x_label: The label of x.
        y_label: The label of the numbers.
        log: Whether x has a logarithmic scale.
        level: The name and height of a horizontal line, such as the model alone; None for none.
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
    """The result of a study.

    Attributes:
        title: The title of its section.
        paper: One sentence about the paper's finding.
        here: One sentence about the finding here.
        holds: Whether the paper's finding holds here; None if no finding can hold or fail.
        header: The header of the table.
        rows: The rows of the table, with numbers and words.
        plot: The figure; None for none.
        passages: Lines of text below the table.
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
        """Returns everything as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Finding:
        """Makes a finding from the result of `to_dict`."""
        plot = content["plot"]
        level = plot and plot["level"] and tuple(plot["level"])
        return cls(**{**content, "plot": plot and Plot(**{**plot, "level": level})})
