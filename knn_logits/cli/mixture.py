"""Reads the options that say how a memory is asked, for every command that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knn_logits.cli import arguments as options

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore


def mixture_settings(
    options_given: Mapping[str, Any], stores: Sequence[Datastore], *, scoring: bool
) -> dict[str, Any]:
    """Reads the settings among the options of a command, and checks them before a model is loaded.

    Args:
        options_given: The command's parameters by name, its `locals()`.
        stores: The datastores, open.
        scoring: Whether the command scores a text. Otherwise it writes one.

    Returns:
        The arguments that `Memory` takes, of those that the command has as options.

    Raises:
        ConfigError: when a setting is out of its range, or does not fit the datastores.
    """
    from knn_logits.mixture.memory import MixtureSettings, resolve

    given = dict(options_given)
    given["lmbda"] = options.weight_of(given.get("lmbda"), given.get("gate"))
    given["weights"] = options.parse_weights(given.get("weights"))
    given["infini_gram"] = options.parse_infini_gram(given.get("infini_gram"))
    given["exclude"] = given.get("without")
    settings: Any = {name: given.get(name) for name in MixtureSettings.__annotations__}
    settings = {name: value for name, value in settings.items() if value is not None}
    resolve(stores, scoring, settings)
    return dict(settings)
