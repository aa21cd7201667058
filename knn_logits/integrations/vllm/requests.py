"""The settings of a request: `knn_` and a setting's name, in `extra_args` or `vllm_xargs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from knn_logits.errors import ConfigError
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.presets import resolve
from knn_logits.printable import first_few
from knn_logits.search.combined import distinct_names, open_stores
from knn_logits.settings.registry import check_settings
from knn_logits.store.datastore import Datastore

_PREFIX = "knn_"
# Whether a request uses the memory: 0 or 1.
SWITCH = "knn"
# The names of the datastores to search.
STORES = "knn_datastores"


def settings_of(extra: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]] | None:
    """The settings and datastores in a request's `extra_args`; None where the memory is off."""
    extra = dict(extra or {})
    if extra.get(SWITCH, 1) not in (0, 1):
        raise ConfigError(f"{SWITCH} must be 0 or 1, not {extra[SWITCH]!r}")
    names = extra.get(STORES, [])
    given = {
        name.removeprefix(_PREFIX): tuple(value) if isinstance(value, list) else value
        for name, value in extra.items()
        if name.startswith(_PREFIX) and name != STORES
    }
    settings = check_settings(given, "request")
    if not extra.get(SWITCH, 1):
        return None
    return settings, [names] if isinstance(names, str) else list(names)


def chosen(stores: Mapping[str, Datastore], names: Sequence[str]) -> Mapping[str, Datastore]:
    """Returns the datastores of these names, or all for no names."""
    for name in names:
        if name not in stores:
            known = first_few([repr(store) for store in stores])
            raise ConfigError(f"no datastore is named {name!r}; there are {known}")
    return {name: stores[name] for name in names} if names else stores


def check_request(extra: Mapping[str, Any] | None, names: Sequence[str]) -> None:
    """Refuses a request's settings, before it reaches a worker. Without datastores all are fine."""
    if not names or not extra or not any(name.startswith(SWITCH) for name in extra):
        return
    given = settings_of(extra)
    if given is not None:
        settings, of = given
        resolve(list(chosen(_opened(tuple(names)), of).values()), settings)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def _opened(names: tuple[str, ...]) -> Mapping[str, Datastore]:
    stores = open_stores(names)
    return dict(zip(distinct_names(stores), stores, strict=True))


class Memories:
    """The memories that requests ask, by their settings; the latest are kept."""

    _KEPT = 64

    def __init__(self, memory: Memory) -> None:
        self._stores = dict(zip(memory.names, memory.stores, strict=True))
        self._memory = memory
        self._of = lru_cache(maxsize=self._KEPT)(self._asked)

    def of(self, extra: Mapping[str, Any] | None) -> Memory | None:
        """Returns the memory that a request with these `extra_args` asks; None for no memory."""
        given = settings_of(extra)
        if given is None:
            return None
        settings, names = given
        return self._of(tuple(sorted(settings.items())), tuple(names))

    def _asked(self, settings: tuple[tuple[str, Any], ...], names: tuple[str, ...]) -> Memory:
        if not settings and not names:
            return self._memory
        stores = chosen(self._stores, names)
        return self._memory.over(stores, **dict(settings))
