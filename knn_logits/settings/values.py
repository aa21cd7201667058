"""Checks single values, and reads those that are given as text."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Iterable
from numbers import Integral, Real

from knn_logits.errors import ConfigError

LARGEST = 2**63 - 1

# Shows a refused value, which may come from a stranger, in a few words.
_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 80
short = _shortened.repr


def whole_number(name: str, value: object, least: int, most: int = LARGEST) -> int:
    """Converts a whole number of any type, such as one of NumPy, to Python's `int`."""
    if not isinstance(value, bool) and isinstance(value, Integral):
        number = int(value)
        if least <= number <= most:
            return number
    limits = f"of at least {least}" if most == LARGEST else f"from {least} to {most}"
    raise ConfigError(f"{name} must be an integer {limits}, not {short(value)}")


def real_number(name: str, value: object) -> float:
    """Converts a finite number of any type to Python's `float`."""
    try:
        if not isinstance(value, bool) and isinstance(value, Real):
            number = float(value)
            if math.isfinite(number):
                return number
    except OverflowError:  # a whole number too large for a float
        pass
    raise ConfigError(f"{name} must be a finite number, not {short(value)}")


def truth(name: str, value: object) -> bool:
    """Converts a truth value, such as one of NumPy, to Python's `bool`."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's
        return bool(value)
    raise ConfigError(f"{name} must be True or False, not {short(value)}")


def check_names(what: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuses names that do not exist, and suggests the closest one."""
    allowed = sorted(allowed)
    for name in names:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, 1)
            hint = f"write {close[0]}" if close else "the names are " + ", ".join(allowed)
            raise ConfigError(f"there is no {what} {short(name)}: {hint}")


def read_shares(text: str) -> list[float]:
    """Reads numbers such as 0.7,0.3."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--weights must be numbers such as 0.7,0.3, not {text!r}") from error


def read_share(text: str) -> float | str:
    """Reads a number, or the word auto."""
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        raise ConfigError(
            f"--infini-gram must be auto or a number from 0 to 1, not {text!r}"
        ) from error
