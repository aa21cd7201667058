"""Evaluations as tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from knn_logits.measure.results import Evaluation
from knn_logits.measure.translation import Score, Translations
from knn_logits.printable import one_line

_HEADER = ("text", "tokens", "model", "neighbors", "mixture", "oracle", "bits a byte")
_TRANSLATIONS_HEADER = ("text", "beams", "written by", "BLEU", "chrF", "pairs a second")
_TITLES = {"bleu": "BLEU", "chrf": "chrF"}


def _number(value: float | None) -> str:
    """Formats a measure with a sensible number of digits. None is infinity."""
    if value is None:
        return "∞"
    digits = 4 if value < 10 else 2 if value < 1000 else 0
    return f"{value:,.{digits}f}"


def _rows(result: Evaluation) -> list[Sequence[str]]:
    """Makes one row for each text. Several texts also get a row for all of them together."""
    return [
        (
            one_line(text.name),
            f"{text.tokens:,}",
            *(_number(value) for value in vars(text.perplexity).values()),
            f"{_number(text.bits_per_byte.lm)} → {_number(text.bits_per_byte.interpolated)}",
        )
        for text in [*result.texts, *([result.total] if len(result.texts) > 1 else [])]
    ]


def _notes(result: Evaluation) -> list[str]:
    """Returns what a reader of the table needs to know, one sentence each."""
    total = result.total
    sentences = []
    if total.interval is not None:
        for name, kind in (("lm", "model"), ("interpolated", "mixture")):
            limits = total.interval.get(name)
            if limits is not None:
                sentences.append(
                    f"95% interval of the {kind}'s perplexity, by resampling {total.documents} "
                    f"documents: {_number(limits[0])} to {_number(limits[1])}."
                )
    words = total.perplexity_per_word
    sentences.append(
        f"Per word: {_number(words.lm)} for the model, {_number(words.interpolated)} for the "
        "mixture."
    )
    reached = total.reached
    if reached.share < 1.0:
        sentences.append(
            f"A neighbor votes for {reached.share:.1%} of the tokens; on these the model has a "
            f"perplexity of {_number(reached.lm)}, the neighbors alone one of "
            f"{_number(reached.knn)}. On the others theirs is infinite."
        )
    return sentences


def plain_table(result: Evaluation) -> str:
    """Makes the table for a terminal, and the settings below it."""
    text = [*_aligned([_HEADER, *_rows(result)]), *_notes(result)]
    text.append(one_line(", ".join(f"{name} {value}" for name, value in result.settings.items())))
    if result.against is not None:
        ratio, interval = result.against["ratio"], result.against["interval"]
        low, high = interval or (float("nan"),) * 2
        text.append(
            f"perplexity against the other run: {ratio - 1:+.2%}, 95% interval {low - 1:+.2%} to "
            f"{high - 1:+.2%}, of {result.against['count']:,} {result.against['units']}"
        )
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


def _translation_rows(results: Sequence[Translations]) -> list[Sequence[str]]:
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


def _translation_notes(results: Sequence[Translations]) -> list[str]:
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
    table = _aligned([_TRANSLATIONS_HEADER, *_translation_rows(results)])
    return "\n".join([*table, *_translation_notes(results)])
