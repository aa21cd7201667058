"""Evaluations as tables of plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from knn_logits.measure.results import Evaluation
from knn_logits.measure.translation import Translations
from knn_logits.printable import one_line

_HEADER = ("text", "tokens", "model", "neighbors", "mixture", "bits a byte")
_TRANSLATIONS_HEADER: tuple[str, ...] = ("text", "beams", "written by", "BLEU", "chrF")


def plain_table(result: Evaluation) -> str:
    """Makes the table for a terminal, and notes and settings below it."""
    total = result.total
    rows: list[Sequence[str]] = [_HEADER]
    # Several texts also get a row for all of them together.
    for text in [*result.texts, *([total] if len(result.texts) > 1 else [])]:
        bits = f"{_number(text.bits_per_byte.lm)} → {_number(text.bits_per_byte.interpolated)}"
        values = [_number(value) for value in vars(text.perplexity).values()]
        rows.append((one_line(text.name), f"{text.tokens:,}", *values, bits))
    lines = _aligned(rows)
    for name, kind in (("lm", "model"), ("interpolated", "mixture")):
        low, high = (total.interval or {}).get(name) or (None, None)
        if low is not None:
            lines.append(
                f"95% interval of the {kind}'s perplexity, by resampling {total.documents} "
                f"documents: {_number(low)} to {_number(high)}."
            )
    lines.append(one_line(", ".join(f"{name} {value}" for name, value in result.settings.items())))
    if result.against is not None:
        ratio, interval = result.against["ratio"], result.against["interval"]
        low, high = interval or (math.nan, math.nan)
        lines.append(
            f"perplexity against the other run: {ratio - 1:+.2%}, 95% interval {low - 1:+.2%} to "
            f"{high - 1:+.2%}, of {result.against['count']:,} {result.against['units']}"
        )
    saved = f", {result.searches_saved:,} saved" if result.searches_saved else ""
    speed = f"{result.tokens_per_second:,.0f} tokens a second"
    return "\n".join([*lines, f"{speed}, {result.searches:,} searches{saved}"])


def plain_translations(results: Sequence[Translations]) -> str:
    """Makes the translations' table for a terminal, and sacrebleu's signatures below it."""
    rows = [_TRANSLATIONS_HEADER]
    for result in results:
        for system, scores in (("model", result.lm), ("with kNN", result.knn)):
            if scores is not None:
                numbers = [f"{score:.2f}" for score in scores.values()]
                name = f"{one_line(result.name)} ({result.pairs:,})"
                rows.append((name, str(result.num_beams), system, *numbers))
    signatures = [f"{name}: {text}" for name, text in results[0].signatures.items()]
    return "\n".join([*_aligned(rows), *signatures])


def _number(value: float | None) -> str:
    """Formats a measure with a sensible number of digits. None is infinity."""
    if value is None:
        return "∞"
    return f"{value:,.{4 if value < 10 else 2 if value < 1000 else 0}f}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])
        for cells in lines
    ]
