"""The options that say how a memory is asked and where it is searched, and what they open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from knn_logits.cli.loading import open_datastore
from knn_logits.cli.options import Settable, Without
from knn_logits.errors import ConfigError
from knn_logits.settings.declaration import setting

if TYPE_CHECKING:
    from knn_logits.ray.searching import RayIndexes
    from knn_logits.store.datastore import Datastore


@dataclass(frozen=True)
class ClusterOptions:
    """The machines of a Ray cluster that hold an index."""

    ray: str | None = setting(
        None, "Use a Ray cluster: auto, HOST:PORT, or local for this machine.", metavar="ADDRESS"
    )
    shards: int | None = setting(
        None, "Number of shards of the index with --ray; by default one per machine.", least=1
    )

    def indexes(self) -> RayIndexes | None:
        """Joins the cluster; None without --ray."""
        if self.ray is None:
            if self.shards:
                raise ConfigError("--shards has no effect without --ray ADDRESS: add it")
            return None
        from knn_logits.ray.searching import RayIndexes

        return RayIndexes(self.ray, shards=self.shards)


# The cluster that builds, and not one that searches.
Ray = Annotated[ClusterOptions, Without(("shards",))]


@dataclass(frozen=True)
class MemoryOptions:
    """How a memory is asked, and where its indexes are."""

    settings: Annotated[dict[str, Any], Settable()]
    cluster: ClusterOptions = ClusterOptions()

    def open(self, stores: Sequence[str]) -> OpenStores:
        """Opens datastores and checks the settings against them, before a model is loaded."""
        keys = bool(self.settings.get("refine") or self.settings.get("retomaton"))
        return self.over([open_datastore(name, keys=keys) for name in stores])

    def over(self, stores: list[Datastore]) -> OpenStores:
        """Does what `open` does, for datastores that are open."""
        from knn_logits.mixture.presets import resolve

        settings: Any = self.settings
        resolve(stores, settings)
        return OpenStores(stores, settings, self.cluster.indexes())


@dataclass(frozen=True)
class ServedMemoryOptions(MemoryOptions):
    """Those of the server."""

    settings: Annotated[dict[str, Any], Settable("serve")]


@dataclass(frozen=True)
class OpenStores:
    """Datastores that are open, and how they are asked."""

    stores: list[Datastore]
    settings: Mapping[str, Any]
    indexes: RayIndexes | None

    def keywords(self, threads: int | None = None) -> dict[str, Any]:
        opening = {"indexes": self.indexes, "threads": threads}
        return {**self.settings, **opening}

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Ends the shards on the cluster when the searches are over."""
        try:
            yield
        finally:
            if self.indexes is not None:
                self.indexes.close()
