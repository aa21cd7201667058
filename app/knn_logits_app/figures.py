"""Turns measures into HTML: the perplexities and the heat map over λ and temperature."""

from __future__ import annotations

import math

from knn_logits_app.markup import text
from knn_logits_app.measuring import Heat, Measured
from knn_logits_app.views import notice

_MOST_ROWS, _MOST_COLUMNS = 11, 12


def measured_html(found: Measured) -> str:
    """Shows the measures of a text."""
    figures = (
        ("The model alone", found.lm),
        ("With the memory", found.interpolated),
        ("Neighbors alone", found.knn),
        ("The better of both at each token", found.oracle),
    )
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{_short(value)}</dd></div>" for name, value in figures
    )
    return (
        f"{_verdict(found)}<dl class='kl-figures'>{shown}</dl>"
        f"<p class='kl-label'>Perplexity of {found.tokens:,} tokens; lower is better. "
        f"Bits per byte: {_short(found.bits_per_byte[1])} without, "
        f"{_short(found.bits_per_byte[0])} with the memory.</p>"
        + (heat_html(found.heat) if found.heat else "")
    )


def _verdict(found: Measured) -> str:
    if found.lm is None or found.interpolated is None:
        return ""
    change = found.interpolated / found.lm - 1
    kind = "note"
    if abs(change) < 0.005:
        line = "The memory neither helps nor harms on this text."
    elif change < 0:
        kind = "done"
        line = f"The memory lowers the perplexity of this text by {-change:.0%}."
    else:
        kind = "worse"
        line = (
            f"The memory raises the perplexity of this text by {change:.0%}, so it misleads here. "
            "A smaller λ, or another datastore, may help."
        )
    return notice(line, kind=kind)


def heat_html(heat: Heat) -> str:
    """Shows the perplexities by temperature and λ as a coloured table, with the best one framed."""
    rows = _some(len(heat.temperatures), heat.best[0], _MOST_ROWS)
    columns = _some(len(heat.lmbdas), heat.best[1], _MOST_COLUMNS)
    numbers = [
        value for row in rows if (line := heat.perplexities[row])
        for column in columns if (value := line[column]) is not None
    ]  # fmt: skip
    low, high = (math.log(one) for one in (min(numbers), max(numbers))) if numbers else (0.0, 1.0)
    head = "".join(f'<th scope="col">λ {heat.lmbdas[column]:g}</th>' for column in columns)
    body = ""
    for row in rows:
        cells = ""
        for column in columns:
            value = heat.perplexities[row][column]
            best = " class='kl-best'" if (row, column) == heat.best else ""
            cells += f"<td{best}{_colour(value, low, high)}>{_short(value)}</td>"
        body += f'<tr><th scope="row">τ {heat.temperatures[row]:.3g}</th>{cells}</tr>'
    best = f"λ {heat.lmbdas[heat.best[1]]:g} and τ {heat.temperatures[heat.best[0]]:.3g}"
    return (
        '<div class="kl-heat" tabindex="0" role="region" aria-label="Perplexity by λ and τ"><table>'
        f"<caption>Perplexity of the first half by λ and τ, with k {heat.k:,}. The frame marks the "
        f"best, {text(best)}. With λ 0 the model is alone.</caption>"
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _some(count: int, best: int, most: int) -> list[int]:
    """Chooses at most `most` of `count` places, evenly spaced and with the best one."""
    if count <= most:
        return list(range(count))
    step = (count - 1) / (most - 1)
    chosen = {round(number * step) for number in range(most)}
    if best not in chosen:
        nearest = min(
            (one for one in chosen if one not in (0, count - 1)), key=lambda one: abs(one - best)
        )
        chosen = chosen - {nearest} | {best}
    return sorted(chosen)


def _colour(value: float | None, low: float, high: float) -> str:
    """Returns the style of a cell, which is greener for a lower perplexity."""
    if value is None:
        return ""
    share = 1.0 if high <= low else 1.0 - (math.log(value) - low) / (high - low)
    strength = round(max(0.0, min(1.0, share)) ** 1.5 * 100)
    return f' style="background:color-mix(in srgb, var(--kl-4) {strength}%, transparent)"'


def _short(value: float | None) -> str:
    if value is None:
        return "∞"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
