"""Opens what a command asks: datastores, or documents, from which it builds one for itself."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from knn_logits.cli.bars import Bars, exits_on_sigterm
from knn_logits.cli.corpus_options import CorpusOptions, Report, refuse_empty
from knn_logits.cli.loading import RunOptions
from knn_logits.cli.terminal import in_documents, in_time, tell
from knn_logits.errors import ConfigError
from knn_logits.printable import printable
from knn_logits.store.hub_client import hub_name

STORES_HELP = (
    "Folders of datastores, or org/name[@revision] on the Hub, or documents: files and folders to "
    "read for this command only. Several are searched as one."
)
Opened = TypeVar("Opened")
StoresOrDocuments = Annotated[list[str], typer.Argument(metavar="STORE...", help=STORES_HELP)]


@contextmanager
def opened_with_model(
    names: Sequence[str],
    model: str,
    run: RunOptions,
    opening: Callable[[list[str]], Opened],
    *,
    votes: bool = True,
) -> Iterator[tuple[Opened, Any, Any]]:
    """Opens datastores and loads the model. Documents become a datastore until the end.

    No build has measured where documents help, so `votes=False` leaves λ at 0 for a chat model.
    """
    named = {name: split_name(name) for name in names}
    for _, place in named.values():
        if not _exists(Path(place)) and hub_name(place) is None:
            raise ConfigError(
                f"{printable(place)} does not exist: pass documents or a datastore; `ask` needs "
                "its question in quotes"
            )
    corpus = [place for _, place in named.values() if _has_documents(place)]
    if not corpus:
        opened = opening(list(names))
        yield (opened, *run.load(model))
        return
    refuse_empty(corpus)
    loaded, tokenizer = run.load(model)
    if loaded.config.is_encoder_decoder:
        raise ConfigError(
            f"{model} is an encoder-decoder, which needs a datastore of pairs: run `knn-logits "
            "build` first, and pass its folder"
        )
    with exits_on_sigterm(), tempfile.TemporaryDirectory(prefix="knn-logits-") as folder:
        built = Path(folder) / "documents"
        silent = not votes and bool(getattr(tokenizer, "chat_template", None))
        read = _build(loaded, tokenizer, corpus, built, 0.0 if silent else None)
        keeping = shlex.join(["knn-logits", "build", model, *corpus, "--out", "STORE"])
        also = ", and lets them vote where that helps" if silent else ""
        tell(f"read {read}, for this command only; `{keeping}` keeps them{also}", style=None)
        # The documents are one datastore, under the first name that was given to any of them.
        labels = [label for label, place in named.values() if label and place in corpus]
        own = f"{labels[0]}={built}" if labels else str(built)
        stores = [own if place in corpus else name for name, (_, place) in named.items()]
        yield opening(list(dict.fromkeys(stores))), loaded, tokenizer


def split_name(text: str) -> tuple[str, str]:
    """Splits NAME=STORE, where no path is called so; the name may be empty."""
    name, sign, place = text.partition("=")
    return (name, place) if sign and not _exists(Path(text)) else ("", text)


def _has_documents(name: str) -> bool:
    """Whether there are documents at a path, and no part of a datastore."""
    from knn_logits.store import layout

    path = Path(name)
    files = (layout.MANIFEST, layout.JOURNAL, layout.TOKENS)
    return _exists(path) and not any(_exists(path / file) for file in files)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no path has this name, or it may not be read
        return False


def _build(
    model: Any, tokenizer: Any, corpus: Sequence[str], folder: Path, lmbda: float | None
) -> str:
    """Builds a datastore without keys, in little more than the documents take to read."""
    from knn_logits.building.builder import build_datastore

    report = Report()
    with Bars("nothing was kept", transient=True) as bars:
        documents = CorpusOptions().documents(corpus, report, bars, pairs=False)
        store = build_datastore(
            model, tokenizer, documents, folder, progress=bars, skipped=report.skipped,
            store_keys=False, calibrate=False, lmbda=lmbda,
        )  # fmt: skip
    manifest = store.manifest
    count = in_documents(manifest.documents)
    return f"{count}, {manifest.entries:,} entries in {in_time(bars.seconds)}"
