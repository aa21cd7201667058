"""matplotlib, imported no sooner than a figure is drawn."""

from __future__ import annotations

from typing import Any

from knn_logits.errors import MissingDependencyError


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure; it needs no display and changes no global state.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        MissingDependencyError: when matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            'plots need matplotlib: pip install "knn-logits[plots]"'
        ) from error
    return Figure(figsize=(width, height), dpi=120, layout="constrained")
