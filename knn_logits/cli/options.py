"""Makes the options of commands from declared settings.

    @command
    def trace(model: Model, store: Store, run: RunOptions,
              documents: int = setting(3, "Number of documents.", least=0)) -> None: ...

A group is a dataclass whose fields `setting()` declares. `Annotated[dict, Settable()]` gets the
settings of a memory that the user gives, by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from knn_logits.cli.terminal import doing, status
from knn_logits.settings.declaration import Place, Setting, settings_of
from knn_logits.settings.registry import check_settings, settings_for

STORE_HELP = "Folder of the datastore, or org/name[@revision] on the Hub."

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id or folder of the model.")]
Store = Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)]
Stores = Annotated[
    list[str], typer.Argument(metavar="STORE...", help=f"{STORE_HELP} Several are searched as one.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
]

_Values = dict[str, Any]
_Reader = Callable[[_Values], Any]
_Expanded = tuple[list[inspect.Parameter], _Reader]


@dataclass(frozen=True)
class Settable:
    """Marks settings of a memory that the user gives: those of one place, or all."""

    place: Place | None = None


@dataclass(frozen=True)
class Without:
    """Marks a group of which a command leaves some settings out: they keep their defaults."""

    names: tuple[str, ...]


def argument(metavar: str, help: str) -> Any:
    """A parameter of a command that is given by its place."""
    return typer.Argument(..., metavar=metavar, help=help)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a function with groups of settings one that typer reads; all is checked first."""
    hints = get_type_hints(function, include_extras=True)
    alone: list[inspect.Parameter] = []
    grouped: list[inspect.Parameter] = []
    readers: dict[str, _Reader] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        options, readers[name] = _expanded(name, hints[name], parameter.default)
        (alone if [option.name for option in options] == [name] else grouped).extend(options)

    def run(**values: Any) -> None:
        arguments = {name: reader(values) for name, reader in readers.items()}
        # The libraries that a command imports take seconds.
        doing("loading libraries")
        try:
            function(**arguments)
        finally:
            status.clear()

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__module__ = function.__module__
    parameters = alone + grouped
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _expanded(name: str, annotation: Any, default: Any) -> _Expanded:
    """The options of a parameter or a field, and what reads its value from theirs."""
    kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    for mark in marks:
        if isinstance(mark, Settable):
            return _settable(name, mark)
    if is_dataclass(kind) and isinstance(kind, type):
        left_out = next((mark.names for mark in marks if isinstance(mark, Without)), ())
        return _group(name, kind, left_out)
    if isinstance(default, Field):
        declared = replace(default.metadata["setting"], name=name, annotation=annotation)
        return _option(name, declared, checked=True)
    parameter = inspect.Parameter(name, _KEYWORD, annotation=annotation, default=default)
    return [parameter], lambda values: values[name]


def _settable(prefix: str, mark: Settable) -> _Expanded:
    # The datastore may have another default.
    expanded = {
        name: _option(f"{prefix}_{name}", replace(declared, default=None))
        for name, declared in settings_for(mark.place).items()
    }
    return _together(expanded, lambda **values: check_settings(values))


def _group(prefix: str, kind: type, left_out: tuple[str, ...]) -> _Expanded:
    declared, hints = settings_of(kind), get_type_hints(kind, include_extras=True)
    checked = not hasattr(kind, "__post_init__")
    expanded: dict[str, _Expanded] = {}
    for part in fields(kind):
        name, key = part.name, f"{prefix}_{part.name}"
        if name not in declared and name not in left_out:
            expanded[name] = _expanded(key, hints[name], part.default)
        elif name not in left_out and declared[name].option != "":
            expanded[name] = _option(key, declared[name], checked=checked)
    return _together(expanded, kind)


def _together(expanded: dict[str, _Expanded], make: Callable[..., Any]) -> _Expanded:
    """All options of several settings, and what makes one value of theirs."""
    parameters = [option for options, _ in expanded.values() for option in options]
    return parameters, lambda values: make(
        **{name: reader(values) for name, (_, reader) in expanded.items()}
    )


def _option(key: str, declared: Setting, *, checked: bool = False) -> _Expanded:
    """The option of a setting, which is checked here unless its group checks it."""
    kind, default = declared.kind or str, declared.default
    text = declared.choices or kind is str
    value: Any = str if text else list[str] if kind is tuple else kind
    shown = inspect.Parameter.empty if default is ... else default if default != () else None
    value = value if default is ... else value | None
    limits: dict[str, Any] = {}
    if checked and kind is int and not text:
        limits = {"min": declared.least, "max": declared.most}
    option = declared.option or "--" + declared.name.replace("_", "-")
    says_range = bool(limits) or (text and kind is not float)
    info = typer.Option(
        option,
        metavar=declared.metavar or ("|".join(declared.choices) if text else None) or None,
        help=declared.help if says_range else declared.summary,
        **limits,
    )
    renamed = replace(declared, name=option)

    def read(values: _Values) -> Any:
        value = values[key]
        if value is None:
            return default
        if kind is float and value not in declared.choices:
            with suppress(ValueError):  # a text that is no number is refused as such
                value = float(value)
        return renamed.check(value) if checked else value

    return [
        inspect.Parameter(key, _KEYWORD, annotation=Annotated[value, info], default=shown)
    ], read


_KEYWORD = inspect.Parameter.KEYWORD_ONLY
