"""Makes the options of commands from declared settings.

A command takes whole groups of settings, and this module turns each group into its options:

    @command
    def explain(model: Model, stores: Stores, memory: MemoryOptions, run: RunOptions) -> None: ...

A group is a dataclass whose fields `setting()` declares, such as `WindowConfig`. The command gets
an instance of it. Settings that were given for a memory, by name, are `Annotated[dict, Given()]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from knn_logits.settings.config import check_settings, settings_for
from knn_logits.settings.declaration import Place, Setting, settings_of

STORE_HELP = "Folder of the datastore, or org/name[@revision] on the Hub."

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id or folder of the model.")]
Store = Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)]
Stores = Annotated[
    list[str],
    typer.Argument(metavar="STORE...", help=f"{STORE_HELP} Several are searched as one."),
]
Key = Annotated[
    str,
    typer.Option(
        "--key",
        help="Place of the key: ffn_input, layer_output, or a module's path with :input or "
        ":output.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done, with files and sizes.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
]

_Values = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """Marks a parameter that gets the settings of a memory which the user gives, checked.

    Attributes:
        place: Only the settings that may be set at this place; None takes all.
    """

    place: Place | None = None


@dataclass(frozen=True)
class Without:
    """Marks a group of which a command leaves some settings out: they keep their defaults."""

    names: tuple[str, ...]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a function with groups of settings one that typer reads: a parameter for each option.

    Every group is checked before the function runs, so before a model is loaded.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    makers: dict[str, Callable[[_Values], Any]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        options, makers[name] = _expanded(name, hints[name], parameter.default)
        parameters += options

    def run(**values: Any) -> None:
        function(**{name: make(values) for name, make in makers.items()})

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__module__ = function.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _expanded(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> tuple[list[inspect.Parameter], Callable[[_Values], Any]]:
    """The options of a parameter or a field, and what makes its value of theirs."""
    kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    for mark in marks:
        if isinstance(mark, Given):
            return _given(name, mark)
    if is_dataclass(kind) and isinstance(kind, type):
        left_out = next((mark.names for mark in marks if isinstance(mark, Without)), ())
        return _group(name, kind, left_out)
    return [_parameter(name, annotation, default)], lambda values: values[name]


def _given(
    prefix: str, mark: Given
) -> tuple[list[inspect.Parameter], Callable[[_Values], _Values]]:
    declared = settings_for(mark.place)
    parameters = [_option(prefix, one, default=None) for one in declared.values()]

    def make(values: _Values) -> _Values:
        given = {name: _read(one, values[f"{prefix}_{name}"]) for name, one in declared.items()}
        return check_settings(given)

    return parameters, make


def _group(
    prefix: str, kind: type, left_out: tuple[str, ...]
) -> tuple[list[inspect.Parameter], Callable[[_Values], Any]]:
    declared, hints = settings_of(kind), get_type_hints(kind, include_extras=True)
    checks_itself = hasattr(kind, "__post_init__")
    parameters: list[inspect.Parameter] = []
    makers: dict[str, Callable[[_Values], Any]] = {}
    for part in fields(kind):
        name = part.name
        if name in left_out or (name in declared and declared[name].option == ""):
            continue
        if name in declared:
            parameters.append(_option(prefix, declared[name], ranged=not checks_itself))
            makers[name] = _reader(prefix, declared[name], not checks_itself)
        else:
            default = inspect.Parameter.empty if part.default is MISSING else part.default
            options, makers[name] = _expanded(f"{prefix}_{name}", hints[name], default)
            parameters += options

    def make(values: _Values) -> Any:
        made = {name: maker(values) for name, maker in makers.items()}
        absent = [name for name in made if name in declared and made[name] is None]
        return kind(**{name: value for name, value in made.items() if name not in absent})

    return parameters, make


def _reader(prefix: str, declared: Setting, check: bool) -> Callable[[_Values], Any]:
    option = replace(declared, name=_name(declared))

    def reader(values: _Values) -> Any:
        value = _read(declared, values[f"{prefix}_{declared.name}"])
        return value if value is None or not check else option.check(value)

    return reader


def _name(declared: Setting) -> str:
    return declared.option or "--" + declared.name.replace("_", "-")


def _read(declared: Setting, value: Any) -> Any:
    """Converts what typer gives to the setting's value; None where nothing was given."""
    return declared.read(value) if declared.read is not None and value is not None else value


_DECLARED = object()


def _option(
    prefix: str, declared: Setting, *, default: Any = _DECLARED, ranged: bool = False
) -> inspect.Parameter:
    """The option of a setting. Its default is shown, unless the datastore may have another one."""
    kind = declared.kind or str
    text = declared.read is not None or declared.choices or kind is str
    value: Any = list[str] if kind is tuple and not text else str if text else kind
    default = declared.default if default is _DECLARED else default
    default = list(default) or None if isinstance(default, tuple) else default
    limits: dict[str, Any] = {}
    if ranged and kind is int and not text:
        limits = {"min": declared.least, "max": declared.most}
    metavar = declared.metavar or ("|".join(declared.choices) if text else None) or None
    says_range = bool(limits) or (text and declared.kind is not float)
    help = declared.help if says_range else declared.summary
    info = typer.Option(_name(declared), metavar=metavar, help=help, **limits)
    return _parameter(f"{prefix}_{declared.name}", Annotated[value | None, info], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)
