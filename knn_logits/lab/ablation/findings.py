"""The findings of studies, and their report in Markdown with figures, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from knn_logits._version import __version__
from knn_logits.measure.figures import new_figure, writing
from knn_logits.printable import one_line
from knn_logits.store.files import write_bytes

PAGE = "ablation.md"
NUMBERS = "ablation.json"

# A smaller relative change of a perplexity counts as no change.
SAME = 0.005
_VERDICT = {True: "Reproduced.", False: "Not reproduced.", None: ""}


@dataclass(frozen=True)
class Plot:
    """A figure of one or several rows of numbers."""

    kind: Literal["lines", "bars"]
    x: Sequence[Any]  # numbers for lines, names for bars
    series: dict[str, Sequence[float | None]]  # None where a number is missing
    x_label: str
    y_label: str = "perplexity, held out"
    log: bool = False
    level: tuple[str, float] | None = None  # a horizontal line, such as the model alone


@dataclass(frozen=True)
class Finding:
    """The result of a study, and the paper's beside it."""

    title: str
    paper: str  # a sentence
    here: str  # a sentence
    holds: bool | None  # whether the paper's finding holds here; None if none can hold or fail
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    plot: Plot | None = None
    passages: Sequence[str] = field(default_factory=list)  # text below the table

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Finding:
        plot = content["plot"]
        level = plot and plot["level"] and tuple(plot["level"])
        return cls(**{**content, "plot": plot and Plot(**{**plot, "level": level})})


def write_report(
    findings: Mapping[str, Finding], settings: Mapping[str, Any], folder: Path, command: str | None
) -> list[Path]:
    """Writes the report of the findings by study, with the command as it is; returns its paths."""
    figures = {
        f"{name}.png": figure(finding.plot)
        for name, finding in findings.items()
        if finding.plot is not None
    }
    content = {
        "settings": dict(settings),
        "findings": {name: finding.to_dict() for name, finding in findings.items()},
        "command": command,
    }
    with writing(folder):
        for name, image in figures.items():
            # Without the version, equal numbers give equal files.
            image.savefig(folder / name, metadata={"Software": None})
    write_bytes(folder / PAGE, page(findings, settings, command).encode())
    write_bytes(folder / NUMBERS, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
    return [folder / name for name in (PAGE, NUMBERS, *figures)]


def page(findings: Mapping[str, Finding], settings: Mapping[str, Any], command: str | None) -> str:
    lines = ["# Ablation report", ""]
    lines += [
        f"{name}: {one_line(str(value))}" + ("  " if number + 1 < len(settings) else "")
        for number, (name, value) in enumerate(settings.items())
    ]
    lines += [
        "",
        "Each row retunes the settings that its study does not vary, on one half of the text. "
        f"Perplexities are of the other half. Differences below {SAME:.1%} count as none.",
        "",
        *table(
            ("study", "reproduced"),
            [(finding.title, {True: "yes", False: "no", None: "-"}[finding.holds])
             for finding in findings.values()],
        ),
    ]  # fmt: skip
    for name, finding in findings.items():
        sentences = f"{finding.paper} {finding.here} {_VERDICT[finding.holds]}".rstrip()
        lines += ["", f"## {finding.title}", "", sentences]
        if finding.plot is not None:
            lines += ["", f"![{finding.title}]({name}.png)"]
        lines += ["", *table(finding.header, finding.rows)]
        if finding.passages:
            lines += ["", *finding.passages]
    if command:
        lines += ["", "## Command", "", "```text", command, "```"]
    lines += ["", f"Made by knn-logits {__version__}.", ""]
    return "\n".join(lines)


def apart(*values: float) -> list[str]:
    """Numbers with as many decimals, one to four, as tell those apart that differ."""
    shown: list[str] = []
    for decimals in range(1, 5):
        shown = [f"{value:.{decimals}f}" for value in values]
        if len(set(shown)) == len(set(values)):
            break
    return shown


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A table in Markdown. Columns of numbers are aligned to the right."""
    right = [
        all(isinstance(row[place], (int, float)) for row in rows) for place in range(len(header))
    ]
    body = [[_cell(value) for value in row] for row in rows]
    rule = ["---:" if numbers else "---" for numbers in right]
    return [f"| {' | '.join(row)} |" for row in (list(header), rule, *body)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def figure(plot: Plot) -> Any:
    drawn = new_figure(6.4, 3.8)
    axes = drawn.subplots()
    if plot.kind == "lines":
        for name, values in plot.series.items():
            axes.plot(plot.x, values, "o-", markersize=3, label=name)
        if plot.log:
            axes.set_xscale("log")
            axes.set_xticks(
                plot.x,
                [f"{x:,.3g}" if x < 1000 else f"{x:,.0f}" for x in plot.x],
                rotation=30,
                ha="right",
            )
            axes.minorticks_off()
    else:
        width = 0.8 / len(plot.series)
        for number, (name, values) in enumerate(plot.series.items()):
            places = [
                place + (number - (len(plot.series) - 1) / 2) * width
                for place in range(len(plot.x))
            ]
            bars = axes.bar(places, values, width, label=name)
            axes.bar_label(bars, ["" if y is None else _cell(y) for y in values], fontsize=8)
        axes.set_xticks(range(len(plot.x)), [str(x) for x in plot.x], rotation=20, ha="right")
        # Above the bars there is room for their numbers, and for a legend.
        axes.margins(y=0.3 if len(plot.series) > 1 else 0.1)
    if plot.level is not None:
        name, value = plot.level
        axes.axhline(value, color="black", linestyle=":", linewidth=1, label=name)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if len(plot.series) > 1 or plot.level is not None:
        axes.legend(frameon=False)
    return drawn
