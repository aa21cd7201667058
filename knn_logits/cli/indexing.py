"""Makes the parts that searches use: `index` and `cluster`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from knn_logits.cli.loading import SeededThreads, folder_of, index_of, open_datastore, recall_words
from knn_logits.cli.memory import Ray
from knn_logits.cli.options import Json, Store, command
from knn_logits.cli.terminal import UNCHANGED, Bars, answer
from knn_logits.errors import ConfigError
from knn_logits.settings.config import IndexConfig
from knn_logits.settings.declaration import setting

if TYPE_CHECKING:
    from knn_logits.store.records import IndexRecord


def compared_kinds(record: IndexRecord) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """The kinds of index that one was chosen among, for JSON and as lines of a table."""
    if record.tried is None:
        return None, []
    from knn_logits.building.choosing import table

    return [kind.model_dump() for kind in record.tried], table(record.tried)


@command
def index(
    store: Store,
    index: IndexConfig,
    cluster: Ray,
    run: SeededThreads,
    suffixes: bool = setting(
        False, "Make the suffix index of the text, for --infini-gram, and leave the other as it is."
    ),
    json: Json = False,
) -> None:
    """Replace the index by another kind or metric, or index suffixes."""
    if suffixes:
        if index != IndexConfig() or cluster.ray is not None:
            raise ConfigError(
                "--suffixes makes only the index of the text: leave --index, --metric, --nprobe, "
                "--budget, --target-recall, --native-index and --ray out"
            )
        _suffixes(store, json)
        return
    from knn_logits.building.indexing import build_index

    run.prepare()
    config = replace(index, seed=run.seed)
    with Bars("the datastore keeps its old index") as bars:
        done = build_index(
            folder_of(store), config, threads=run.threads, ray=cluster.ray, progress=bars
        )
    seconds = bars.seconds
    record = done.manifest.index
    kinds, lines = compared_kinds(record)
    content = {**index_of(done), "entries": len(done), "tried": kinds}
    line = f"{done.folder}: index {record.factory}{recall_words(done)} in {seconds:.0f} s"
    answer(json, content, *lines, line, seconds=seconds)


def _suffixes(store: str, json: bool) -> None:
    from knn_logits.building.indexing import build_suffixes

    datastore = open_datastore(store)
    with Bars(UNCHANGED) as bars:
        done = build_suffixes(datastore, progress=bars)
    record = done.manifest.file("suffixes")
    assert record is not None
    seconds, tokens = bars.seconds, done.manifest.tokens
    content = {"suffixes": True, "tokens": tokens, "bytes": record.bytes}
    line = f"{done.folder}: suffix index of {tokens:,} tokens in {seconds:.0f} s"
    answer(json, content, line, seconds=seconds)


@command
def cluster(
    store: Store,
    run: SeededThreads,
    clusters: int = setting(
        ..., "Number of clusters; a hundredth of the entries is a good number.", least=1
    ),
    sample: int | None = setting(None, "Number of keys that k-means learns from.", least=1),
    json: Json = False,
) -> None:
    """Group the entries into clusters, which --retomaton follows."""
    from knn_logits.building.clustering import cluster as make_clusters

    run.prepare()
    datastore = open_datastore(store)
    with Bars(UNCHANGED) as bars:
        done = make_clusters(
            datastore, clusters, sample=sample, seed=run.seed, threads=run.threads, progress=bars
        )
    seconds = bars.seconds
    answer(
        json,
        {"clusters": clusters, "entries": len(done)},
        f"{done.folder}: {len(done):,} entries in {clusters:,} clusters in {seconds:.0f} s",
        seconds=seconds,
    )
