"""`sync_documents` updates a datastore to given documents, at the cost of what is new."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from torch import nn

from knn_logits.building.adding import (
    check_has_keys,
    contents_of,
    digest_of,
    finish_growth,
    keep_checks,
    key_plan,
)
from knn_logits.building.steps import Cut, Steps, cut_documents, document_fields
from knn_logits.corpus.documents import Document, as_documents, several
from knn_logits.engine.forward import evaluating
from knn_logits.errors import CorpusError
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import check_threads
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import Job, begin
from knn_logits.store.writer import SHARD_BYTES, TokenWriter

logger = logging.getLogger(__name__)

_DESCRIBING = ("title", "uri", "metadata")


@dataclass(frozen=True)
class Sync:
    """The result of `sync_documents`, or its plan.

    Attributes:
        datastore: The datastore, opened again.
        added: Ids of the documents that are new.
        changed: Ids of the documents whose text, title, uri or metadata changed.
        removed: Ids of the documents that are gone.
        unchanged: Number of documents that did not change.
        kept: Ids of the documents that are gone, but that `keep` wanted to stay.
        tokens: Number of tokens whose keys are computed.
    """

    datastore: Datastore
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int
    kept: tuple[str, ...]
    tokens: int

    def to_dict(self) -> dict[str, int]:
        """Returns the numbers of documents, for JSON."""
        return {
            name: len(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if name != "datastore"
        }


def sync_documents(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore | str | os.PathLike[str],
    documents: Iterable[Document | str],
    *,
    dry_run: bool = False,
    force: bool = False,
    keep: Callable[[str], bool] | None = None,
    on_plan: Callable[[Sync], None] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Sync:
    """Updates a datastore to given documents: adds new, replaces changed and removes old ones.

    Documents are matched by their ids and compared by their tokens, so keys are computed for new
    text only. Until the call has finished, readers see the datastore as it was. An interrupted call
    continues when it is made again with the same documents, and with others it starts again. No
    search finds text that was removed or replaced; `compact` deletes it from the disk.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore, or its folder.
        documents: All documents that the datastore is to hold, in any order. They are read once.
            Texts without an id are numbered from 0, as in a build.
        dry_run: Find out what would be done, and write nothing.
        force: Continue even if none of the datastore's documents is among those given.
        keep: Decides whether the documents of an id that is gone stay. It is called when all
            documents are read.
        on_plan: Called with the plan before keys are computed. An exception from it ends the call.
        batch_tokens: Tokens of one forward pass; None chooses by the device.
        shard_bytes: Size of one file of keys.
        threads: OpenMP threads of the index; None leaves the choice to FAISS.
        progress: A callback that is told how far the work is.

    Returns:
        What was done.

    Raises:
        MismatchError: when model or tokenizer are not the datastore's.
        CorpusError: when none of the datastore's documents is among those given.
        DatastoreError: when there is something to add, and the datastore has no keys.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full.
    """
    documents = several(documents, "documents")
    check_threads(threads)
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    folder = store.folder.resolve()
    keys = key_plan(model, tokenizer, store, batch_tokens)
    progress("tokens", 0, None)
    cut = cut_documents(tokenizer, as_documents(documents), keys.pairs)
    if dry_run:
        differences = _Differences(store, keep, force, progress)
        deque(differences.new(cut), maxlen=0)
        return differences.settle()
    plan = keys.as_text(model, tokenizer)
    # Files may change between an unfinished call and this one, so another text is not an error.
    with begin(folder, "sync", plan, overwrite=True) as job, evaluating(model):
        store = Datastore(folder)
        differences = _Differences(store, keep, force, progress)
        new = differences.new(cut)
        first = next(new, None)
        settle = partial(differences.settle, on_plan=on_plan)
        if first is None:
            settle()
            _finish_without_text(job, store, differences)
        else:
            check_has_keys(store)
            keep_checks(job, store)
            steps = Steps(job, model, tokenizer, keys, progress, shard_bytes)
            text = steps.append(chain([first], new), store, settle)
            _warn_of_stream(store, differences)
            finish_growth(steps, store, text, threads, removed=differences.removed)
    return replace(differences.plan, datastore=Datastore(folder))


def _finish_without_text(job: Job, store: Datastore, differences: _Differences) -> None:
    """Ends a job for which no key has to be computed."""
    base = store.manifest
    if not differences.gone and not differences.described:
        job.give_up()
        return
    _warn_of_stream(store, differences)
    settings = base.settings
    if differences.described:
        table = store.documents
        records = [table[number] for number in range(len(table))]
        for number, fields in differences.described.items():
            records[number] = replace(records[number], **fields)  # type: ignore[arg-type]
        job.write("documents", records)
    if differences.gone:
        settings = settings.model_copy(update={"stale": True})
    job.commit(base, removed=differences.removed, settings=settings)


def _warn_of_stream(store: Datastore, differences: _Differences) -> None:
    if differences.gone and store.manifest.windows.concatenate:
        logger.warning(
            "the documents of %s are one stream, so the remaining keys may still depend on "
            "removed text before them; rebuild the datastore if that matters",
            store.folder,
        )


class _Differences:
    """The differences between a datastore and the documents that it is to hold."""

    plan: Sync  # once `settle` was called

    def __init__(
        self, store: Datastore, keep: Callable[[str], bool] | None, force: bool, progress: Progress
    ) -> None:
        self._store, self._progress = store, progress
        self._keep, self._force = keep, force
        self._pairs = store.manifest.pairs is not None
        # Documents of the datastore that no given document has matched yet. The parts of one large
        # file share an id, and are matched one after another.
        self._waiting: dict[tuple[str, bytes], deque[int]] = {}
        self._before: dict[str, None] = {}
        for number, id, digest in contents_of(store):
            self._before[id] = None
            self._waiting.setdefault((id, digest), deque()).append(number)
        self._met: dict[str, None] = {}
        self._with_new: set[str] = set()
        self._tokens = 0
        # Numbers of the documents that do not stay, and new descriptions of those that do.
        self.gone: tuple[int, ...] = ()
        self.described: dict[int, dict[str, str | None]] = {}

    @property
    def removed(self) -> tuple[int, ...]:
        """Numbers of all documents that no search will find, ascending."""
        return tuple(sorted({*self._store.manifest.removed, *self.gone}))

    def new(self, cut: Iterator[Cut]) -> Iterator[Cut]:
        """Yields the documents that the datastore does not hold under their ids."""
        read = 0
        for document, ids, places in cut:
            if not ids:
                continue
            read += len(ids)
            self._progress("tokens", read, None)
            self._met[document.id] = None
            source = document.source if self._pairs else None
            same = self._waiting.get((document.id, digest_of(ids, source)))
            if not same:
                self._with_new.add(document.id)
                self._tokens += len(ids)
                yield document, ids, places
                continue
            number = same.popleft()
            record = self._store.documents[number]
            fields = document_fields(document, places, pairs=self._pairs)
            if any(fields[name] != getattr(record, name) for name in _DESCRIBING):
                self.described[number] = {name: fields[name] for name in _DESCRIBING}

    def settle(
        self, writer: TokenWriter | None = None, on_plan: Callable[[Sync], None] | None = None
    ) -> Sync:
        """Decides what is to be done, once all documents were read, and describes documents."""
        before, met = self._before, self._met
        if before and not before.keys() & met.keys() and not self._force:
            example = next(iter(before))
            raise CorpusError(
                f"none of the {len(before):,} documents of {self._store.folder}, such as "
                f"{example!r}, is among the {len(met):,} documents given: pass the folder it was "
                "built from, or --force (force=True) to replace them all"
            )
        left = [(id, number) for (id, _), numbers in self._waiting.items() for number in numbers]
        missing = [id for id in before if id not in met]
        staying = [id for id in missing if self._keep is not None and self._keep(id)]
        stay = set(staying)
        self.gone = tuple(sorted(number for id, number in left if id not in stay))
        less = {id for id, _ in left}
        described = {self._store.documents[number].id for number in self.described}
        differing = self._with_new | less | described
        self.plan = Sync(
            datastore=self._store,
            added=tuple(id for id in met if id not in before),
            changed=tuple(id for id in met if id in before and id in differing),
            removed=tuple(id for id in before if id not in met and id not in stay),
            unchanged=sum(id in before and id not in differing for id in met),
            kept=tuple(staying),
            tokens=self._tokens,
        )
        if on_plan is not None:
            on_plan(self.plan)
        if writer is not None:
            for number, fields in self.described.items():
                writer.describe(number, **fields)
        return self.plan
