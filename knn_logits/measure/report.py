"""Writes a report of an evaluation for a model card: settings, table, plot and exact command."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from knn_logits._version import __version__
from knn_logits.measure.figures import new_figure, writing
from knn_logits.measure.results import Evaluation, TextResult
from knn_logits.measure.table import (
    HEADER,
    TRANSLATIONS_HEADER,
    notes,
    rows,
    translation_notes,
    translation_rows,
)
from knn_logits.measure.translation import Translations
from knn_logits.printable import one_line

PAGE = "evaluation.md"
PLOT = "evaluation.png"
NUMBERS = "evaluation.json"

# More bars than this cannot be read. Then one group of bars stands for all texts.
_MOST_TEXTS = 12
_BARS = (("model", "lm", "#9aa0a6"), ("mixture", "interpolated", "#1a73e8"))
_ORACLE = ("oracle λ", "oracle", "#a8dab5")


def write_report(
    result: Evaluation,
    folder: str | os.PathLike[str],
    command: str | None = None,
    translations: Sequence[Translations] | None = None,
) -> list[Path]:
    """Writes a page in Markdown, its plot, and the numbers as JSON."""
    figure = _plot(result)
    target = Path(folder)
    content = {**result.to_dict(), "command": command}
    if translations is not None:
        content["translations"] = [result_of_text.to_dict() for result_of_text in translations]
    numbers = json.dumps(content, indent=1, allow_nan=False)
    text = page(result, command, translations)
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        figure.savefig(target / PLOT)
        (target / PAGE).write_text(text, encoding="utf-8", errors="backslashreplace")
        (target / NUMBERS).write_text(numbers + "\n", encoding="utf-8")
    return [target / name for name in (PAGE, PLOT, NUMBERS)]


def page(
    result: Evaluation,
    command: str | None = None,
    translations: Sequence[Translations] | None = None,
) -> str:
    """Makes the page in Markdown."""
    lines = ["## Evaluation", ""]
    lines += [
        "Perplexity per token: of the model alone, of the neighbors alone, of the mixture, and "
        "with the better of both for each token (the oracle, which no rule can reach).",
        "",
    ]
    lines += _table(HEADER, [[_cell(cell) for cell in row] for row in rows(result)], left=1)
    lines += ["", f"![Perplexity without and with the datastore]({PLOT})", ""]
    lines += [f"- {note}" for note in notes(result)]
    if translations:
        lines += ["", "### Translations", ""]
        cells = [[_cell(cell) for cell in row] for row in translation_rows(translations)]
        lines += _table(TRANSLATIONS_HEADER, cells, left=1)
        lines += ["", *(f"- {note}" for note in translation_notes(translations))]
    lines += ["", "### Setting", ""]
    settings = {**result.settings, "searches": f"{result.searches:,}"}
    lines += _table(
        ("setting", "value"),
        [[name, _cell(str(value))] for name, value in settings.items()],
        left=2,
    )
    if command:
        # A fence longer than any run of backticks in the command.
        fence = "```"
        while fence in command:
            fence += "`"
        lines += ["", "### Command", "", fence + "bash", command, fence]
    lines += [
        "",
        f"Made with [knn-logits](https://pypi.org/project/knn-logits/) {__version__}.",
        "",
    ]
    return "\n".join(lines)


def _table(header: Sequence[str], body: list[list[str]], left: int) -> list[str]:
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *body)]


def _cell(text: str) -> str:
    """Escapes the text of a cell, since names of files may contain anything."""
    flat = one_line(text).strip()
    for sign in "\\|<>[]*_`":
        flat = flat.replace(sign, "\\" + sign)
    return flat


def _plot(result: Evaluation) -> Any:
    texts: list[TextResult] = list(result.texts)
    if len(texts) > _MOST_TEXTS:
        texts = [result.total]
    bars = [bar for bar in (*_BARS, _ORACLE) if getattr(result.total.perplexity, bar[1])]
    figure = new_figure(max(4.5, 1.5 + 1.3 * len(texts)), 4.0)
    axes = figure.subplots()
    width = 0.8 / max(1, len(bars))
    for number, (label, name, color) in enumerate(bars):
        values = [getattr(text.perplexity, name) or 0.0 for text in texts]
        places = [place + (number - (len(bars) - 1) / 2) * width for place in range(len(texts))]
        axes.bar(places, values, width, label=label, color=color)
        for place, value, text in zip(places, values, texts, strict=True):
            top = value
            limits = (text.interval or {}).get(name)
            if limits is not None:
                # A value may lie outside the interval of a very skewed sample.
                top = max(value, limits[1])
                error = [[max(0.0, value - limits[0])], [top - value]]
                axes.errorbar(place, value, error, color="#5f6368", linewidth=1, capsize=2)
            if value:
                axes.annotate(f"{value:.3g}", (place, top), ha="center", va="bottom", fontsize=7)
    names = [Path(text.name).name[:24] or text.name for text in texts]
    axes.set_xticks(range(len(texts)), names)
    axes.margins(y=0.15)
    axes.set_ylabel("perplexity per token")
    axes.legend(ncols=len(bars), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return figure
