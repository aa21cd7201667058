"""Declares settings: each is one field of a dataclass, from which everything else is made.

    k: int = setting(1024, "Number of neighbors of each query.", least=1, set_by=("request",))

"Add a setting" in CONTRIBUTING.md says what is made from it.
"""

from __future__ import annotations

import difflib
import math
import reprlib
import types
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from knn_logits.errors import ConfigError

MAX_INTEGER = 2**63 - 1

# Shows a refused value, which may come from a stranger, in a few words.
_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 80
short = _shortened.repr


def whole_number(name: str, value: object, least: int, most: int = MAX_INTEGER) -> int:
    """Converts a whole number of any type, such as one of NumPy, to Python's `int`."""
    if not isinstance(value, bool) and isinstance(value, Integral):
        number = int(value)
        if least <= number <= most:
            return number
    limits = f"of at least {least}" if most == MAX_INTEGER else f"from {least} to {most}"
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


# Who may set a setting, beside Python, `generate`, `explain`, `eval` and `chat`, which may set all:
# the options of three commands, a request to the server, the page's controls.
Place: TypeAlias = Literal["build", "tune", "serve", "request", "page"]

# The longest text of a list that a request may have.
_LONGEST_TEXT = 512
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Setting:
    """A setting: its name, type, range, default and help, and who may set it.

    Attributes:
        default: The value where none is given, and the datastore has none.
        help: What it does, in one or two sentences.
        details: What the reference says in addition.
        least: The smallest value.
        above: A bound that the value has to exceed.
        most: The largest value.
        limit: The largest value that a request to the server or the page may have; for a list, the
            most members.
        symbol: Its short name in lines of text, such as λ.
        set_by: Who may set it. Python and the commands that ask a memory may set all settings.
        stored: Whether a manifest keeps it.
        reported: Whether the JSON of an answer names it.
        option: Its option of the command line; None derives it from the name, and "" has none.
        metavar: What stands for its value in the help of the command line.
        name: Its name, from the field.
        annotation: Its type, from the field.
    """

    default: Any = None
    help: str = ""
    details: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    limit: float | None = None
    symbol: str = ""
    set_by: tuple[Place, ...] = ()
    stored: bool = False
    reported: bool = False
    option: str | None = None
    metavar: str | None = None
    name: str = ""
    annotation: Any = None

    @cached_property
    def _types(self) -> list[Any]:
        """The members of a union, or the type alone."""
        union = get_origin(self.annotation) in (Union, types.UnionType)
        return list(get_args(self.annotation)) if union else [self.annotation]

    @cached_property
    def optional(self) -> bool:
        """Whether None is a value."""
        return type(None) in self._types

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The words that are values."""
        literals = [get_args(part) for part in self._types if get_origin(part) is Literal]
        return tuple(word for words in literals for word in words)

    @cached_property
    def kind(self) -> type | None:
        """`int`, `float`, `bool`, `str`, or `tuple`; None if only words are values."""
        plain = [part for part in self._types if get_origin(part) is not Literal]
        plain = [get_origin(part) or part for part in plain if part is not type(None)]
        kind = plain[0] if plain else None
        if kind not in (int, float, bool, str, tuple, None):
            raise TypeError(f"the setting {self.name} has a type that is not checked: {kind}")
        return kind

    @property
    def range(self) -> str:
        """The allowed values in words, such as "0 to 1"; empty where all of the type are."""
        bounds = [] if self.above is None else [f"above {self.above:g}"]
        if self.least is not None and self.most is not None:
            bounds.append(f"{self.least:g} to {self.most:g}")
        elif self.least is not None:
            bounds.append(f"at least {self.least:g}")
        elif self.most is not None:
            bounds.append(f"at most {self.most:g}")
        *first, last = [*([" and ".join(bounds)] if bounds else []), *self.choices] or [""]
        return f"{', '.join(first)} or {last}" if first else last

    @property
    def summary(self) -> str:
        """The help with the range: "Weight of the neighbors in the mixture; 0 to 1."."""
        return self.help if not self.range else f"{self.help.rstrip('.')}; {self.range}."

    def check(self, value: Any, *, limited: bool = False) -> Any:
        """Returns a value, converted to Python's own type; `limited` holds it to `limit` as well.

        Raises:
            ConfigError: when it is of another type, or out of its range.
        """
        if (value is None and self.optional) or (isinstance(value, str) and value in self.choices):
            return value
        if self.kind is None:
            raise ConfigError(
                f"{self.name} must be one of {', '.join(self.choices)}, not {short(value)}"
            )
        if self.kind is bool:
            return truth(self.name, value)
        if self.kind is tuple:
            return self._several(value, limited)
        if self.kind is str:
            if not isinstance(value, str):
                raise ConfigError(f"{self.name} must be a string, not {short(value)}")
            return value
        if self.choices and isinstance(value, str):
            raise ConfigError(f"{self.name} must be {self.range}, not {short(value)}")
        most = self.limit if limited and self.limit is not None else self.most
        if self.kind is int:
            most = MAX_INTEGER if most is None else int(most)
            return whole_number(self.name, value, int(self.least or 0), most)
        return self._in_range(real_number(self.name, value), most, value)

    def _in_range(self, number: float, most: float | None, value: object) -> float:
        low = self.least is not None and number < self.least
        low = low or (self.above is not None and number <= self.above)
        if not low and (most is None or number <= most):
            return number
        if self.least is not None and most is not None:
            limits = f"lie between {self.least:g} and {most:g}"
        elif self.above is not None:
            limits = f"be above {self.above:g}" + ("" if most is None else f" and at most {most:g}")
        else:
            limits = f"be at least {self.least:g}"
        words = "".join(f", or be {word!r}" for word in self.choices)
        raise ConfigError(f"{self.name} must {limits}{words}, not {short(value)}")

    def _several(self, value: Any, limited: bool) -> tuple[str, ...]:
        """Checks a list of texts. A single one may be given as such."""
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(
                f"{self.name} must be a list of document ids or titles, not {short(value)}"
            )
        if limited and self.limit is not None:
            longest = max(map(len, texts), default=0)
            if len(texts) > self.limit or longest > _LONGEST_TEXT:
                raise ConfigError(
                    f"{self.name} must be a list of at most {self.limit} strings of at most "
                    f"{_LONGEST_TEXT} characters each"
                )
        return tuple(texts)

    def shown(self, value: Any) -> str:
        """Formats a value for a line of settings: at most four digits, "on" for a switch."""
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:.4g}" if isinstance(value, float) else str(value)


def setting(default: Any, help: str, **declared: Any) -> Any:
    """A field of a dataclass that declares a setting. `Setting` explains the arguments."""
    return field(
        default=default, metadata={"setting": Setting(default=default, help=help, **declared)}
    )


_DECLARED: dict[type, dict[str, Setting]] = {}


def settings_of(kind: type) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name, in its order."""
    if kind not in _DECLARED:
        hints = get_type_hints(kind)
        declared = {part.name: part.metadata.get("setting") for part in fields(kind)}
        _DECLARED[kind] = {
            name: replace(setting, name=name, annotation=hints[name])
            for name, setting in declared.items()
            if setting is not None
        }
    return _DECLARED[kind]


def check_fields(config: Any) -> None:
    """Checks every setting of a frozen dataclass that is being made."""
    for name, declared in settings_of(type(config)).items():
        object.__setattr__(config, name, declared.check(getattr(config, name)))


def documented(kind: type[_Kind]) -> type[_Kind]:
    """Appends a dataclass's settings to its docstring, as its attributes."""
    lines = [
        f"    {name}: {declared.summary} {declared.details}"
        for name, declared in settings_of(kind).items()
    ]
    body = "\n    ".join(line.rstrip() for line in lines)
    raises = "    Raises:\n        ConfigError: when a value is out of its range."
    kind.__doc__ = f"{(kind.__doc__ or '').rstrip()}\n\n    Attributes:\n    {body}\n\n{raises}\n"
    return kind
