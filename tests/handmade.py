"""Writes datastores token by token, without a model."""

from contextlib import contextmanager

import numpy as np

from knn_logits.store import writer
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import DocumentRecord
from knn_logits.store.files import write_arrays
from knn_logits.store.job import begin
from knn_logits.store.manifest import Manifest
from knn_logits.store.records import (
    IndexRecord,
    KeyRecord,
    ModelRecord,
    SettingsRecord,
    TokenizerRecord,
    WindowRecord,
)
from knn_logits.store.writer import write_keys, writing_text


@contextmanager
def shards_of(size):
    """Makes files of keys of at most a number of bytes."""
    before, writer.SHARD_BYTES = writer.SHARD_BYTES, size
    try:
        yield
    finally:
        writer.SHARD_BYTES = before


def make_manifest(**settings):
    return Manifest(
        **{
            "created_with": "test",
            "model": ModelRecord(id="m", type="gpt2", config_sha256="0", dtype="float32"),
            "tokenizer": TokenizerRecord(id="t", sha256="0", vocabulary=100),
            "key": KeyRecord(name="ffn_input", module="h.0.mlp", side="input"),
            "entries": 0,
            "documents": 0,
            "tokens": 0,
            "dim": 4,
            "windows": WindowRecord(window=8, stride=4),
            "index": IndexRecord(factory="exact", requested="auto"),
            "settings": SettingsRecord(k=8, lmbda=0.25, temperature=10.0),
            "files": (),
            **settings,
        }
    )


def write_tokens(job, documents, *, concatenate=False, vocabulary=100):
    with writing_text(job, concatenate=concatenate, vocabulary=vocabulary) as text:
        for number, tokens in enumerate(documents):
            text.add(tokens, id=str(number), title=f"title {number}")
    return text


def make_store(
    folder,
    documents,
    keys=None,
    *,
    concatenate=False,
    metric="l2",
    dtype="float16",
    dim=4,
    shard_bytes=writer.SHARD_BYTES,
    with_keys=True,
    vocabulary=100,
):
    """Makes a datastore of documents, which are lists of tokens. The default keys are random."""
    with begin(folder, "build", {}, overwrite=True) as job:
        text = write_tokens(job, documents, concatenate=concatenate, vocabulary=vocabulary)
        entries = text.contexts().entries
        if keys is None:
            keys = np.random.default_rng(0).standard_normal((entries, dim)).astype(dtype)
        assert len(keys) == entries
        if with_keys:
            with shards_of(shard_bytes):
                write_keys(job, np.array_split(keys.astype(dtype), 3))
        write_arrays(job.path("checks"), {"nothing": np.zeros(1, np.float32)}, {})
        job.note(job.path("checks"))
        manifest = make_manifest(
            generation=job.journal.generation,
            entries=entries,
            documents=len(text.records),
            tokens=text.tokens,
            dim=keys.shape[1],
            dtype=dtype,
            metric=metric,
            windows=WindowRecord(window=8, stride=4, concatenate=concatenate),
            files=job.files,
        )
        job.commit(manifest)
    return Datastore(folder)


def naive_entries(documents, *, concatenate=False):
    """Lists the entries as (place of the token in the text, number of its document, token)."""
    entries = []
    place = 0
    for number, tokens in enumerate(documents):
        for offset, token in enumerate(tokens):
            begins = place == 0 if concatenate else offset == 0
            if not begins:
                entries.append((place, number, token))
            place += 1
    return entries


def document_records(documents):
    first, records = 0, []
    for number, tokens in enumerate(documents):
        records.append(DocumentRecord(first, len(tokens), str(number), f"title {number}"))
        first += len(tokens)
    return records
