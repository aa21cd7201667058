"""Opens what a command asks: datastores, or documents, from which it builds one for itself."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from knn_logits.cli.bars import Bars
from knn_logits.cli.corpus_options import CorpusOptions, Report
from knn_logits.cli.loading import RunOptions
from knn_logits.cli.memory import MemoryOptions, OpenStores
from knn_logits.cli.terminal import in_time, tell

STORES_HELP = (
    "Folders of datastores, or org/name[@revision] on the Hub, or documents: files and folders to "
    "read for this command only. Several are searched as one."
)
StoresOrDocuments = Annotated[list[str], typer.Argument(metavar="STORE...", help=STORES_HELP)]


@contextmanager
def opened_with_model(
    names: Sequence[str], model: str, memory: MemoryOptions, run: RunOptions
) -> Iterator[tuple[OpenStores, Any, Any]]:
    """Opens datastores and loads the model. Documents become a datastore until the end."""
    corpus = [name for name in names if _has_documents(name)]
    if not corpus:
        opened = memory.open(names, scoring=False)
        yield (opened, *run.load(model))
        return
    loaded, tokenizer = run.load(model)
    with tempfile.TemporaryDirectory(prefix="knn-logits-") as folder:
        built = Path(folder) / "documents"
        read = _build(loaded, tokenizer, corpus, built)
        keeping = shlex.join(["knn-logits", "build", model, *corpus, "--out", "STORE"])
        tell(f"read {read}, for this command only; `{keeping}` keeps them", style=None)
        stores = dict.fromkeys(str(built) if name in corpus else name for name in names)
        yield memory.open(list(stores), scoring=False), loaded, tokenizer


def _has_documents(name: str) -> bool:
    """Whether there are documents at a path, and no part of a datastore."""
    from knn_logits.store import layout

    path = Path(name)
    try:
        files = (layout.MANIFEST, layout.JOURNAL, layout.TOKENS)
        return path.exists() and not any((path / file).exists() for file in files)
    except (OSError, ValueError):  # no path has this name, or it may not be read
        return False


def _build(model: Any, tokenizer: Any, corpus: Sequence[str], folder: Path) -> str:
    """Builds a datastore without keys, in little more than the documents take to read."""
    from knn_logits.building.builder import build_datastore

    report = Report()
    with Bars("nothing was kept", transient=True) as bars:
        documents = CorpusOptions().documents(corpus, report, bars, pairs=False)
        store = build_datastore(
            model, tokenizer, documents, folder, progress=bars, skipped=report.skipped,
            store_keys=False, calibrate=False,
        )  # fmt: skip
    manifest = store.manifest
    entries = f"{manifest.documents:,} documents, {manifest.entries:,} entries"
    return f"{entries} in {in_time(bars.seconds)}"
