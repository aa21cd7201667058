"""An evaluation as lines of text, for a terminal and for a page. Formatting only."""

from __future__ import annotations

from collections.abc import Sequence

from knn_logits.evaluation.results import Evaluation, Measures, TextResult

HEADER = ("text", "tokens", "model", "neighbors", "mixture", "oracle", "bits a byte")


def number(value: float | None) -> str:
    """A measure with a sensible number of digits; infinity for None."""
    if value is None:
        return "∞"
    digits = 4 if value < 10 else 2 if value < 1000 else 0
    return f"{value:,.{digits}f}"


def rows(result: Evaluation) -> list[Sequence[str]]:
    """A row a text, and one of all together where there are several."""
    found = list(result.texts)
    if len(found) > 1:
        found.append(result.total)
    return [_row(one) for one in found]


def _row(text: TextResult) -> Sequence[str]:
    measures: Measures = text.perplexity
    bits = text.bits_per_byte
    return (
        text.name,
        f"{text.tokens:,}",
        number(measures.lm),
        number(measures.knn),
        number(measures.interpolated),
        number(measures.oracle),
        f"{number(bits.lm)} → {number(bits.interpolated)}",
    )


def notes(result: Evaluation) -> list[str]:
    """What a reader of the table needs to know, a sentence each."""
    total = result.total
    found = []
    if total.interval is not None:
        for name, kind in (("lm", "model"), ("interpolated", "mixture")):
            limits = total.interval.get(name)
            if limits is not None:
                found.append(
                    f"95% interval of the {kind}'s perplexity, by resampling {total.documents} "
                    f"documents: {number(limits[0])} to {number(limits[1])}."
                )
    words = total.perplexity_per_word
    found.append(
        f"Per word: {number(words.lm)} for the model, {number(words.interpolated)} for the mixture."
    )
    reached = total.reached
    if reached.share < 1.0:
        found.append(
            f"A neighbor votes for {reached.share:.1%} of the tokens; on these the model has a "
            f"perplexity of {number(reached.lm)}, the neighbors alone one of "
            f"{number(reached.knn)}. On the others theirs is infinite."
        )
    return found


def plain_table(result: Evaluation) -> str:
    """The table for a terminal, and the settings below it."""
    lines = [HEADER, *rows(result)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    text += notes(result)
    text.append(", ".join(f"{name} {value}" for name, value in result.settings.items()))
    text.append(f"{result.tokens_per_second:,.0f} tokens a second, {result.searches:,} searches")
    return "\n".join(text)
