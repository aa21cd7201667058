"""`--config FILE`: the options and arguments of a command, from a file of TOML or YAML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from knn_logits.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_config(context: typer.Context, file: str | None) -> str | None:
    """Makes the values of a file the command's defaults; the command line overrides them."""
    if file is None:
        return None
    try:
        text = Path(file).read_text("utf-8")
        values = tomllib.loads(text) if Path(file).suffix == ".toml" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file} cannot be read as TOML or YAML: {reason}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} has no names and values: write lines such as `lmbda: 0.25`")
    names: dict[str, str] = {}
    for parameter in context.command.params:
        for name in (parameter.name, *parameter.opts):
            names[str(name).lstrip("-").replace("-", "_")] = str(parameter.name)
    known: dict[str, Any] = {}
    for key, value in values.items():
        option = names.get(str(key).replace("-", "_"))
        if option in (None, "config"):
            raise ConfigError(f"{file}: {key!r} is no option of `{context.info_name}`")
        known[str(option)] = value
    context.default_map = known
    return file


Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Options and arguments from a TOML or YAML file; the command line overrides them.",
        is_eager=True,
        callback=read_config,
    ),
]
