"""Writes the heat map over λ and temperature, the curve over k, and their numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from knn_logits.measure.figures import new_figure, writing
from knn_logits.measure.tune.result import Tuning
from knn_logits.settings.registry import settings_line

HEAT_MAP = "lmbda-temperature.png"
CURVE = "k.png"
NUMBERS = "tuning.json"


def write_plots(result: Tuning, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes two figures and the numbers behind them."""
    figures = {HEAT_MAP: _heat_map(result), CURVE: _curve(result)}
    target = Path(folder)
    text = json.dumps(result.numbers(), indent=1, allow_nan=False)
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(target / name)
        (target / NUMBERS).write_text(text + "\n", encoding="utf-8")
    return [target / name for name in (*figures, NUMBERS)]


def _heat_map(result: Tuning) -> Any:
    figure = new_figure(7.5, 4.8)
    axes = figure.subplots()
    grid, place = result.grid, result.place
    values = result.perplexities[place[0]]
    # Settings far from the best are equally bad. Only those close to it matter.
    highest = min(float(np.nanmax(values[np.isfinite(values)])), 2.0 * float(np.nanmin(values)))
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis_r", vmax=highest)
    axes.set_xticks(range(len(grid.lmbdas)), [f"{lmbda:g}" for lmbda in grid.lmbdas], rotation=90)
    axes.set_yticks(
        range(len(grid.temperatures)), [f"{temperature:.3g}" for temperature in grid.temperatures]
    )
    axes.plot(place[2], place[1], "o", markerfacecolor="none", markeredgecolor="red")
    axes.set_xlabel("λ, weight of the neighbors")
    axes.set_ylabel("temperature")
    axes.set_title(f"perplexity at k {result.k}; best: {settings_line(result, symbols=True)}")
    figure.colorbar(image, extend="max")
    return figure


def _curve(result: Tuning) -> Any:
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    ks = result.grid.ks
    axes.plot(ks, result.perplexities.min(axis=(1, 2)), "o-", label="chosen on")
    axes.plot(ks, result.held_out_by_k(), "s--", label="held out")
    axes.axvline(result.k, color="red", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks], rotation=90)
    axes.minorticks_off()
    axes.set_xlabel("k, neighbors of each query")
    axes.set_ylabel("perplexity, at the best λ and temperature")
    axes.legend()
    return figure
