"""Formats an evaluation as lines of text, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence

from knn_logits.measure.results import Evaluation, Measures, TextResult
from knn_logits.measure.scores import Score
from knn_logits.measure.translation import Translations
from knn_logits.printable import one_line

HEADER = ("text", "tokens", "model", "neighbors", "mixture", "oracle", "bits a byte")


def number(value: float | None) -> str:
    """Formats a measure with a sensible number of digits. None is infinity."""
    if value is None:
        return "∞"
    digits = 4 if value < 10 else 2 if value < 1000 else 0
    return f"{value:,.{digits}f}"


def rows(result: Evaluation) -> list[Sequence[str]]:
    """Makes one row for each text. Several texts also get a row for all of them together."""
    texts = list(result.texts)
    if len(texts) > 1:
        texts.append(result.total)
    return [_row(text) for text in texts]


def _row(text: TextResult) -> Sequence[str]:
    measures: Measures = text.perplexity
    bits = text.bits_per_byte
    return (
        one_line(text.name),
        f"{text.tokens:,}",
        number(measures.lm),
        number(measures.knn),
        number(measures.interpolated),
        number(measures.oracle),
        f"{number(bits.lm)} → {number(bits.interpolated)}",
    )


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


TRANSLATIONS_HEADER = ("text", "beams", "written by", "BLEU", "chrF", "pairs a second")


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


_TITLES = {"bleu": "BLEU", "chrf": "chrF"}


def plain_translations(results: Sequence[Translations]) -> str:
    """Makes the translations' table for a terminal, and notes below it."""
    table = _aligned([TRANSLATIONS_HEADER, *translation_rows(results)])
    return "\n".join([*table, *translation_notes(results)])
