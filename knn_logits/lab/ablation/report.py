"""Writes the report of all findings, in Markdown with figures, and the numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from knn_logits._version import __version__
from knn_logits.lab.ablation.finding import Finding, Plot
from knn_logits.lab.ablation.sweeps import SAME
from knn_logits.measure.figures import new_figure, writing
from knn_logits.printable import one_line
from knn_logits.store.files import write_bytes

PAGE = "ablation.md"
NUMBERS = "ablation.json"

_VERDICT = {True: "It holds here.", False: "It does not hold here.", None: ""}


def write_report(
    findings: Mapping[str, Finding], settings: Mapping[str, Any], folder: Path, command: str | None
) -> list[Path]:
    """Writes the report.

    Args:
        findings: The finding of each study, by the study's name.
        settings: The settings of the studies.
        folder: The folder of the report.
        command: The command that made the report, which is printed unchanged.

    Returns:
        The paths of the files.

    Raises:
        MissingDependencyError: when matplotlib is not installed; nothing is written then.
        StorageError: when the folder cannot be written.
    """
    figures = {
        f"{name}.png": figure(one.plot) for name, one in findings.items() if one.plot is not None
    }
    content = {
        "settings": dict(settings),
        "findings": {name: one.to_dict() for name, one in findings.items()},
        "command": command,
    }
    with writing(folder):
        for name, one in figures.items():
            # Without the version, equal numbers give equal files.
            one.savefig(folder / name, metadata={"Software": None})
    write_bytes(folder / PAGE, page(findings, settings, command).encode())
    write_bytes(folder / NUMBERS, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
    return [folder / name for name in (PAGE, NUMBERS, *figures)]


def page(findings: Mapping[str, Finding], settings: Mapping[str, Any], command: str | None) -> str:
    """Returns the report in Markdown."""
    lines = ["# The papers' studies, made again", ""]
    lines += [
        f"{name}: {one_line(str(value))}" + ("  " if number + 1 < len(settings) else "")
        for number, (name, value) in enumerate(settings.items())
    ]
    lines += [
        "",
        "Settings that a study does not vary are chosen again for each of its rows, by the "
        "likelihood of one half of the text. Every perplexity is of the other half. A difference "
        f"of less than {SAME:.1%} counts as none.",
        "",
        *table(
            ("study", "holds here"),
            [(one.title, {True: "yes", False: "no", None: "-"}[one.holds])
             for one in findings.values()],
        ),
    ]  # fmt: skip
    for name, one in findings.items():
        lines += [
            "",
            f"## {one.title}",
            "",
            f"{one.paper} {one.here} {_VERDICT[one.holds]}".rstrip(),
        ]
        if one.plot is not None:
            lines += ["", f"![{one.title}]({name}.png)"]
        lines += ["", *table(one.header, one.rows)]
        if one.passages:
            lines += ["", *one.passages]
    if command:
        lines += ["", "## Command", "", "```text", command, "```"]
    lines += ["", f"Made by knn-logits {__version__}.", ""]
    return "\n".join(lines)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Returns a table in Markdown. Columns of numbers are aligned to the right."""
    right = [
        all(isinstance(row[place], (int, float)) for row in rows) for place in range(len(header))
    ]
    body = [[_cell(value) for value in row] for row in rows]
    rule = ["---:" if one else "---" for one in right]
    return [f"| {' | '.join(row)} |" for row in (list(header), rule, *body)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def figure(plot: Plot) -> Any:
    """Draws a plot as a matplotlib figure."""
    drawn = new_figure(6.4, 3.8)
    axes = drawn.subplots()
    if plot.kind == "lines":
        for name, values in plot.series.items():
            axes.plot(plot.x, values, "o-", markersize=3, label=name)
        if plot.log:
            axes.set_xscale("log")
            axes.set_xticks(
                plot.x,
                [f"{one:,.3g}" if one < 1000 else f"{one:,.0f}" for one in plot.x],
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
            axes.bar_label(bars, ["" if one is None else _cell(one) for one in values], fontsize=8)
        axes.set_xticks(range(len(plot.x)), [str(one) for one in plot.x], rotation=20, ha="right")
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
