"""The tab that measures a text without and with kNN, and its figures and heat map as HTML."""

from __future__ import annotations

import math
from typing import Any

import gradio as gr

from knn_logits_app import page_parts, views
from knn_logits_app.page_parts import Controls, Server
from knn_logits_app.requests import friendly
from knn_logits_app.work import MOST_MEASURED, Heat, Measured

_MOST_ROWS, _MOST_COLUMNS = 11, 12
_INFINITE = (
    "<p class='kl-label'>∞: some word follows none of the neighbors, so their share is 0.</p>"
)


def build(server: Server, controls: Controls) -> None:
    """Lays the tab out and connects it."""
    sources = server.session.library.reader.sources
    box: dict[str, Any] = {"lines": 5, "max_lines": 14, "max_length": MOST_MEASURED}
    source = gr.Textbox(
        visible=sources,
        label="Sources, one per line",
        elem_id="evaluate-sources",
        **box,
    )
    text = gr.Textbox(
        label="Their targets" if sources else "A text to predict",
        placeholder="Paste a text that the documents do not contain.",
        info="The memory knows the documents word for word, so they would measure nothing.",
        elem_id="evaluate-text",
        **box,
    )
    with gr.Row(elem_classes="kl-run"):
        button = gr.Button("Evaluate", variant="primary", size="md", elem_id="evaluate")
    output = page_parts.place(content="${value}", elem_id="evaluated")

    def on_evaluate(request: gr.Request, *values: Any) -> str:
        try:
            lookup, (sources, text) = page_parts.split(server, values)
            visitor = request.session_hash
            private, deadline = server.visitors.stores(visitor), server.session.limits.deadline()
            with server.visitors.running(visitor, deadline, "evaluate"):
                measured = server.work.result("measure", private, deadline, text, lookup(), sources)
            return measured_html(measured)
        except Exception as error:
            return views.notice(friendly(error), kind="error")

    def check(*values: Any) -> None:
        page_parts.check(values, *values[-2:], most=MOST_MEASURED)

    button.click(
        on_evaluate,
        [*controls.lookup, source, text],
        [output],
        validator=page_parts.validator(check),
        **{**page_parts.MODEL, "show_progress": "full"},
    )


def measured_html(measured: Measured) -> str:
    """Shows the measures of a text."""
    figures = {
        "The model alone": measured.lm,
        "With the memory": measured.interpolated,
        "Neighbors alone": measured.knn,
        "The better of both at each token": measured.oracle,
    }
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{_short(value)}</dd></div>" for name, value in figures.items()
    )
    mixed, alone = map(_short, measured.bits_per_byte)
    return (
        f"{_verdict(measured)}<dl class='kl-figures'>{shown}</dl>"
        f"<p class='kl-label'>Perplexity of {measured.tokens:,} tokens; lower is better. "
        f"The memory has {views.text(measured.settings)}. "
        f"Bits per byte: {alone} without, {mixed} with the memory.</p>"
        f"{_INFINITE if '∞' in shown else ''}{heat_html(measured.heat) if measured.heat else ''}"
    )


def _verdict(measured: Measured) -> str:
    if measured.lm is None or measured.interpolated is None:
        return ""
    change = measured.interpolated / measured.lm - 1
    if abs(change) < 0.005:
        return views.notice("The memory neither helps nor harms on this text.")
    if change < 0:
        line = f"The memory lowers the perplexity of this text by {-change:.0%}."
        return views.notice(line, kind="done")
    line = f"The memory raises the perplexity of this text by {change:.0%}, so it misleads here. "
    return views.notice(f"{line}A smaller λ, or another datastore, may help.", kind="worse")


def heat_html(heat: Heat) -> str:
    """Shows the perplexities by temperature and λ as a coloured table, with the best one framed."""
    rows = thinned(len(heat.temperatures), heat.best[0], _MOST_ROWS)
    columns = thinned(len(heat.lmbdas), heat.best[1], _MOST_COLUMNS)
    cells = [[heat.perplexities[row][column] for column in columns] for row in rows]
    logs = [math.log(value) for line in cells for value in line if value is not None] or [0.0, 1.0]
    head = "".join(f'<th scope="col">λ {heat.lmbdas[column]:g}</th>' for column in columns)
    body = ""
    for row, line in zip(rows, cells, strict=True):
        body += f'<tr><th scope="row">τ {heat.temperatures[row]:.3g}</th>'
        for column, value in zip(columns, line, strict=True):
            best = " class='kl-best'" if (row, column) == heat.best else ""
            body += f"<td{best}{_colour(value, min(logs), max(logs))}>{_short(value)}</td>"
        body += "</tr>"
    best = f"λ {heat.lmbdas[heat.best[1]]:g} and τ {heat.temperatures[heat.best[0]]:.3g}"
    return (
        "<details class='kl-heat-fold'><summary>Perplexity under other λ and τ</summary>"
        f"<p class='kl-label'>Perplexity of the first half by λ and τ, with k {heat.k:,}. The "
        f"frame marks the best, {best}. With λ 0 the model is alone.</p>"
        '<div class="kl-heat" tabindex="0" role="region" aria-label="Perplexity by λ and τ"><table>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def thinned(count: int, best: int, most: int) -> list[int]:
    """Chooses at most `most` of `count` places, evenly spaced and with the best one."""
    if count <= most:
        return list(range(count))
    step = (count - 1) / (most - 1)
    chosen = {round(number * step) for number in range(most)}
    if best not in chosen:
        inner = chosen - {0, count - 1}
        chosen = chosen - {min(inner, key=lambda place: abs(place - best))} | {best}
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
