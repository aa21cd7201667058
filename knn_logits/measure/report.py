"""An evaluation as lines of text for a terminal, and as a report for a model card."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from knn_logits._version import __version__
from knn_logits.measure.figures import new_figure, writing
from knn_logits.measure.results import Evaluation, TextResult
from knn_logits.measure.translation import Score, Translations
from knn_logits.printable import one_line

HEADER = ("text", "tokens", "model", "neighbors", "mixture", "oracle", "bits a byte")
TRANSLATIONS_HEADER = ("text", "beams", "written by", "BLEU", "chrF", "pairs a second")
_TITLES = {"bleu": "BLEU", "chrf": "chrF"}
PAGE, PLOT, NUMBERS = "evaluation.md", "evaluation.png", "evaluation.json"

# More bars than this cannot be read. Then one group of bars stands for all texts.
_MOST_TEXTS = 12
_BARS = (("model", "lm", "#9aa0a6"), ("mixture", "interpolated", "#1a73e8"))
_ORACLE = ("oracle λ", "oracle", "#a8dab5")


def number(value: float | None) -> str:
    """Formats a measure with a sensible number of digits. None is infinity."""
    if value is None:
        return "∞"
    digits = 4 if value < 10 else 2 if value < 1000 else 0
    return f"{value:,.{digits}f}"


def rows(result: Evaluation) -> list[Sequence[str]]:
    """Makes one row for each text. Several texts also get a row for all of them together."""
    return [
        (
            one_line(text.name),
            f"{text.tokens:,}",
            *(number(value) for value in vars(text.perplexity).values()),
            f"{number(text.bits_per_byte.lm)} → {number(text.bits_per_byte.interpolated)}",
        )
        for text in [*result.texts, *([result.total] if len(result.texts) > 1 else [])]
    ]


def notes(result: Evaluation) -> list[str]:
    """Returns what a reader of the table needs to know, one sentence each."""
    total = result.total
    sentences = []
    if total.interval is not None:
        for name, kind in (("lm", "model"), ("interpolated", "mixture")):
            limits = total.interval.get(name)
            if limits is not None:
                sentences.append(
                    f"95% interval of the {kind}'s perplexity, by resampling {total.documents} "
                    f"documents: {number(limits[0])} to {number(limits[1])}."
                )
    words = total.perplexity_per_word
    sentences.append(
        f"Per word: {number(words.lm)} for the model, {number(words.interpolated)} for the mixture."
    )
    reached = total.reached
    if reached.share < 1.0:
        sentences.append(
            f"A neighbor votes for {reached.share:.1%} of the tokens; on these the model has a "
            f"perplexity of {number(reached.lm)}, the neighbors alone one of "
            f"{number(reached.knn)}. On the others theirs is infinite."
        )
    return sentences


def plain_table(result: Evaluation) -> str:
    """Makes the table for a terminal, and the settings below it."""
    text = [*_aligned([HEADER, *rows(result)]), *notes(result)]
    text.append(one_line(", ".join(f"{name} {value}" for name, value in result.settings.items())))
    saved = f", {result.searches_saved:,} saved" if result.searches_saved else ""
    speed = f"{result.tokens_per_second:,.0f} tokens a second"
    text.append(f"{speed}, {result.searches:,} searches{saved}")
    return "\n".join(text)


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def translation_rows(results: Sequence[Translations]) -> list[Sequence[str]]:
    """Makes one row for each text, number of beams and system."""
    lines: list[Sequence[str]] = []
    for result in results:
        systems = [("model", result.lm, result.lm_per_second)]
        if result.knn is not None and result.knn_per_second is not None:
            systems.append(("with kNN", result.knn, result.knn_per_second))
        lines += [
            (
                f"{one_line(result.name)} ({result.pairs:,})",
                str(result.num_beams),
                name,
                _score(scores["bleu"]),
                _score(scores["chrf"]),
                f"{speed:.2f}",
            )
            for name, scores, speed in systems
        ]
    return lines


def _score(score: Score) -> str:
    if score.interval is None:
        return f"{score.score:.2f}"
    low, high = score.interval
    return f"{score.score:.2f} ({low:.1f} to {high:.1f})"


def translation_notes(results: Sequence[Translations]) -> list[str]:
    """Returns what a reader of the translations' table needs to know, one sentence each."""
    lines = ["In parentheses: 95% intervals, by resampling the pairs."]
    for result in results:
        if result.p_value is not None:
            chances = ", ".join(
                f"{title} {result.p_value[name]:.3f}" for name, title in _TITLES.items()
            )
            lines.append(
                f"{result.name}, beams {result.num_beams}: probability of so large a difference by "
                f"chance (paired bootstrap): {chances}."
            )
    signatures = dict.fromkeys(
        score.signature for result in results for score in result.lm.values()
    )
    return [*lines, *(f"Signature: {signature}" for signature in signatures)]


def plain_translations(results: Sequence[Translations]) -> str:
    """Makes the translations' table for a terminal, and notes below it."""
    table = _aligned([TRANSLATIONS_HEADER, *translation_rows(results)])
    return "\n".join([*table, *translation_notes(results)])


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
