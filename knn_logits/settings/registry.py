"""Lists the settings of a memory, checks values that somebody gives, and puts them into words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from knn_logits.settings.config import KNNConfig, MixtureConfig, StoredSettings
from knn_logits.settings.declaration import Place, Setting, check_names, settings_of


def settings_for(place: Place | None = None) -> dict[str, Setting]:
    """Lists the settings of a memory, by name.

    Args:
        place: "build", "tune", "serve", "request" or "page" lists only those that may be
            set there; None lists all.
    """
    every = {**settings_of(MixtureConfig), **settings_of(KNNConfig)}
    return {
        name: declared
        for name, declared in every.items()
        if place is None or place in declared.set_by
    }


def check_settings(values: Mapping[str, Any], place: Place | None = None) -> dict[str, Any]:
    """Checks settings that somebody gives, each by its declaration, without a model or a datastore.

    Args:
        values: Values by name; None stands for a setting that is not given.
        place: Where they come from, as in `settings_for`. What comes from "request" or "page" is
            held to the settings' `limit`.

    Returns:
        The values that are given, in Python's own types. `Memory` takes them as keywords.

    Raises:
        ConfigError: when a name does not exist there, or a value is out of its range.
    """
    allowed = settings_for(place)
    check_names("setting", values, allowed)
    limited = place in ("request", "page")
    return {
        name: allowed[name].check(value, limited=limited)
        for name, value in values.items()
        if value is not None
    }


def stored_names() -> list[str]:
    """The settings that a manifest keeps, in the order of their declaration."""
    return [name for name, declared in settings_of(KNNConfig).items() if declared.stored]


def stored_settings(values: Mapping[str, Any]) -> StoredSettings:
    """Picks the settings that a datastore keeps, of those that are given."""
    chosen = {name: values[name] for name in stored_names() if values.get(name) is not None}
    return cast(StoredSettings, chosen)


def changed_settings(config: KNNConfig) -> list[str]:
    """The settings that answers report and that differ from their defaults."""
    return [
        name
        for name, declared in settings_of(KNNConfig).items()
        if declared.reported and getattr(config, name) != declared.default
    ]


def settings_line(settings: Any, *, symbols: bool = False) -> str:
    """Puts the settings that hold into a line: "k 8, lmbda 0.25, temperature 10, suffix weight 4".

    Args:
        settings: A `KNNConfig`, or the settings in a datastore's manifest.
        symbols: Write λ and τ for `lmbda` and `temperature`.

    Returns:
        k, λ and the temperature, and each other setting that a datastore keeps and that is
        not its default.
    """
    parts = []
    for name, declared in settings_of(KNNConfig).items():
        value = getattr(settings, name, declared.default)
        if declared.symbol:
            parts.append(f"{declared.symbol if symbols else name} {declared.shown(value)}")
        elif declared.stored and value != declared.default:
            parts.append(f"{name.replace('_', ' ')} {declared.shown(value)}")
    return ", ".join(parts)
