"""`build_datastore`: from a corpus to tokens, keys, an index and the finished folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits._version import __version__
from knn_logits.arrays import Array
from knn_logits.building.calibration import calibrate as calibrated_settings
from knn_logits.building.estimate import Estimate, estimated
from knn_logits.building.indexing import check_index, like_temperature, make_index, write_index
from knn_logits.building.nearness import near_record, nearness_of
from knn_logits.building.on_demand import ON_DEMAND, finish_on_demand
from knn_logits.building.planning import planned
from knn_logits.building.ranks import Ranks, leading, write_keys_together
from knn_logits.building.repeats import warn_of_repeats
from knn_logits.building.steps import write_canary, write_keys, write_text
from knn_logits.building.writing_settings import choose_writing, with_suffixes
from knn_logits.corpus.documents import Document, several
from knn_logits.engine.compatibility import (
    CANARY_KEYS,
    CANARY_TOKENS,
    check_model,
    model_record,
    tokenizer_record,
)
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import DEFAULT_KEY, KeyLocation
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.errors import ConfigError
from knn_logits.progress import Progress, no_progress, while_running
from knn_logits.ray.connection import connect
from knn_logits.settings.config import IndexConfig, WindowConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import Job, begin
from knn_logits.store.manifest import Manifest
from knn_logits.store.reading import map_array
from knn_logits.store.records import IndexRecord, KeyRecord, PairsRecord, SettingsRecord
from knn_logits.store.writer import SHARD_BYTES

# The forward pass is timed on the sources of so many pairs.
_SOURCES = 4096
# An index of so many entries is filled on a cluster, if there is one.
_FILLED_BY_OTHERS = 1 << 20


def build_datastore(
    model: nn.Module,
    tokenizer: Any,
    documents: Iterable[Document | str],
    folder: str | os.PathLike[str],
    *,
    key: str = DEFAULT_KEY,
    window: WindowConfig | None = None,
    concatenate: bool = False,
    source_prefix: str = "",
    source_lang: str | None = None,
    target_lang: str | None = None,
    index: IndexConfig | str | None = None,
    k: int | None = None,
    lmbda: float | None = None,
    temperature: float | None = None,
    suffix_weight: float | None = None,
    calibrate: bool = True,
    store_keys: bool = True,
    keys_dtype: str = "float16",
    batch_tokens: int | None = None,
    threads: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    license: str | None = None,
    source: str | None = None,
    skipped: Sequence[tuple[str, str]] = (),
    on_estimate: Callable[[Estimate], None] | None = None,
    ray: str | None = None,
    torchrun: bool = False,
    progress: Progress = no_progress,
) -> Datastore:
    """Builds a datastore from a corpus: one entry for each token that another token precedes.

    The key of an entry is the model's hidden state before the token, and the value is the token.
    Khandelwal et al. (2020), "Generalization through Memorization", section 2. With an
    encoder-decoder model the entries are the tokens of the targets, and the model also reads their
    sources. Khandelwal et al. (2021), "Nearest Neighbor Machine Translation", section 2.

    An interrupted build continues when it is called again with the same arguments. It then ends
    with the same bytes as a build without an interruption.

    Args:
        model: The model that will use the datastore.
        tokenizer: Its tokenizer.
        documents: Texts or `Document`s, in order. They are read once. For an encoder-decoder model
            they are `Document`s with a `source`, and their text is the target.
        folder: The folder to write. It must be new or empty.
        key: Where the key is in the model: "ffn_input", "layer_output", or a module's path with
            ":input" or ":output".
        window: The number of tokens that the model sees at once, and the stride between windows.
        concatenate: Join the documents into one stream, so that contexts cross their edges.
        source_prefix: A text that stands before every source, for an encoder-decoder model.
        source_lang: The language of the sources, for a tokenizer that knows languages.
        target_lang: The language of the targets.
        index: What kind of index to build.
        k: Neighbors for each query. This value, `lmbda`, `temperature` and `suffix_weight` are kept
            as the datastore's settings, which hold where a user gives none.
        lmbda: Weight of the neighbors, in [0, 1].
        temperature: Temperature of the softmax over the neighbors, above 0. Where None is not
            calibrated, it takes 10 for the metric "l2" and what corresponds to it for another.
        suffix_weight: How many times as much an entry counts for each token before it that is also
            before the query. None takes 1 where the other three are given, or nothing is chosen.
        calibrate: Choose those of the settings that are not given. They are chosen twice:
            for scoring by the likelihood of a sample of the corpus, and for writing as
            `building/writing_settings.py` says.
        store_keys: Compute the keys now and store them. Otherwise the datastore holds the text and
            its suffix index, which takes seconds and eight bytes a token. Where it is used, the
            model computes the keys of the passages that matter for each text. This needs a causal
            model.
        keys_dtype: "float16", or "float32" for keys whose numbers float16 cannot hold.
        batch_tokens: Tokens of one forward pass; None chooses by the device.
        threads: OpenMP threads of the index; None leaves the choice to FAISS.
        shard_bytes: Size of one file of keys. An interrupted build loses less than one file.
        overwrite: Replace an existing datastore once the new one is complete. It also starts an
            unfinished build again that had other arguments.
        license: Licence of the text, kept in the manifest.
        source: Where the text comes from, kept in the manifest.
        skipped: A list that the reader of the corpus fills while it reads. The manifest keeps its
            length.
        on_estimate: Called with an estimate of the build once all text is read. An exception from
            it ends the build, and a later call continues there. Measuring the speed for the
            estimate takes some seconds.
        ray: Address of a Ray cluster whose machines compute the keys, and fill a large index:
            "auto", host:port, or "local". The files are the same as without it.
        torchrun: Whether torchrun has started this process, and all of its processes call this
            function with the same arguments. Each of them then writes its own shards of keys into
            the folder, which all of them see. The first one reads the documents and does the
            rest. The files are the same as those of one process.
        progress: A callback that is told how far the work is.

    Returns:
        The finished datastore.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when no document holds two tokens.
        ModelError: when the model has no place for the key, or its keys are not finite.
        DatastoreError: when the folder cannot be used.
        MismatchError: when the folder holds an unfinished build of another model, text or plan.
        BusyError: when another process is writing the folder.
        StorageError: when the disk is full.
        UnreachableError: when there is no cluster at the address, or no machine of it is left.
    """
    documents = several(documents, "documents")
    if torchrun and ray is not None:
        raise ConfigError(
            "a build is spread either by Ray or by torchrun: leave --ray out, or start the command "
            "without torchrun"
        )
    build = planned(
        model,
        tokenizer,
        key=key,
        window=window,
        concatenate=concatenate,
        source_prefix=source_prefix,
        source_lang=source_lang,
        target_lang=target_lang,
        index=index,
        k=k,
        lmbda=lmbda,
        temperature=temperature,
        suffix_weight=suffix_weight,
        keys_dtype=keys_dtype,
        batch_tokens=batch_tokens,
        threads=threads,
        store_keys=store_keys,
    )
    if ray is not None:
        # A cluster that is not there is said before any work is done.
        connect(ray)
    keys, index, settings = build.keys, build.index, build.settings
    location, pairs = keys.location, keys.pairs
    # The path is made absolute, since the current folder may change while the job runs.
    target = Path(folder).resolve()
    plan = build.as_text(model, tokenizer)
    ranks = Ranks.joined() if torchrun else None
    if ranks is not None and ranks.rank:
        ranks.follow(model, keys)
        return Datastore(folder)
    with (
        leading(ranks),
        begin(target, "build", plan, overwrite=overwrite) as job,
        evaluating(model),
    ):
        canary = write_canary(job, model, tokenizer, keys)
        check_index(index, canary[CANARY_KEYS].shape[1], index.metric or "l2")
        text = write_text(job, tokenizer, documents, model, concatenate, progress, pairs=pairs)
        if job.repeated:
            return _as_it_is(job, model, location)
        contexts = text.contexts()
        check_index(index, canary[CANARY_KEYS].shape[1], index.metric or "l2", contexts.entries)
        if on_estimate is not None:
            on_estimate(
                estimated(
                    model,
                    tokenizer,
                    build,
                    np.asarray(map_array(job.path("tokens"), "int32", (text.tokens,))),
                    contexts,
                    text.documents,
                    job.path("documents").stat().st_size,
                    sources=text.sources(range(min(text.documents, _SOURCES))) if pairs else None,
                    k=k,
                    calibrate=calibrate and None in (k, lmbda, temperature),
                    threads=threads,
                    progress=progress,
                )
            )
        compute: Callable[..., Iterator[Array]] | None = None
        if ray is not None:
            from knn_logits.building.spread import spread_keys

            compute = spread_keys(ray, canary[CANARY_TOKENS], canary[CANARY_KEYS])
        if store_keys and ranks is not None:
            write_keys_together(
                ranks,
                job,
                model,
                keys,
                text,
                contexts,
                canary,
                shard_bytes=shard_bytes,
                progress=progress,
            )
        elif store_keys:
            write_keys(
                job,
                model,
                keys,
                text,
                contexts,
                shard_bytes=shard_bytes,
                progress=progress,
                compute=compute,
            )
        manifest = Manifest(
            created_with=__version__,
            model=model_record(model),
            tokenizer=tokenizer_record(tokenizer),
            key=KeyRecord(name=key, module=location.module, side=location.side),
            entries=contexts.entries,
            documents=text.documents,
            tokens=text.tokens,
            dim=canary[CANARY_KEYS].shape[1],
            dtype="float16" if keys_dtype == "float16" else "float32",
            metric=index.metric or "l2",
            windows=keys.windows,
            pairs=_pairs_record(pairs),
            skipped=len(skipped),
            index=IndexRecord(
                factory="exact" if store_keys else ON_DEMAND, requested=index.factory
            ),
            settings=SettingsRecord(
                k=settings.k,
                lmbda=settings.lmbda,
                temperature=settings.temperature,
                suffix_weight=settings.suffix_weight,
            ),
            license=license,
            source=source,
            on_demand=build.on_demand,
            files=job.files,
        )
        # At this point the datastore lacks only the index and the manifest.
        store = Datastore.unfinished(target, manifest)
        if temperature is None:
            fitting = like_temperature(store, settings.temperature, "l2")
            manifest = manifest.model_copy(
                update={"settings": manifest.settings.model_copy(update={"temperature": fitting})}
            )
        if calibrate:
            warn_of_repeats(store, index.seed)
        if not store_keys:
            finish_on_demand(
                job,
                manifest,
                model,
                location,
                calibrate=calibrate,
                k=k,
                lmbda=lmbda,
                temperature=temperature,
                suffix_weight=suffix_weight,
                seed=index.seed,
                progress=progress,
            )
            return Datastore(folder)
        # The workers take seconds to start, which is longer than a small index takes to fill.
        filled = ray if contexts.entries >= _FILLED_BY_OTHERS else None
        built, record = make_index(store, index, threads=threads, ray=filled, progress=progress)
        settings_record, writing = manifest.settings, None
        store.manifest = manifest
        nearness = while_running(
            progress,
            "settings for writing",
            lambda: 1.0,
            lambda: nearness_of(store, built, index.seed),
        )
        if calibrate:
            if pairs is None:
                writing = choose_writing(
                    store, nearness, k=k, lmbda=lmbda, temperature=temperature, seed=index.seed
                )
            settings_record = calibrated_settings(
                model,
                location,
                store,
                built,
                k=k,
                lmbda=lmbda,
                temperature=temperature,
                suffix_weight=suffix_weight,
                pairs=pairs,
                seed=index.seed,
                progress=progress,
            )
            writing = with_suffixes(writing, settings_record)
        write_index(job, store, built, record, canary)
        job.commit(
            manifest,
            index=record,
            settings=settings_record,
            writing=writing,
            near=near_record(store, nearness),
        )
    return Datastore(folder)


def _as_it_is(job: Job, model: nn.Module, location: KeyLocation) -> Datastore:
    """Opens a datastore that an earlier run finished, but did not clean up after."""
    store = Datastore(job.folder)
    check_model(model, store, location)
    job.give_up()
    return store


def _pairs_record(pairs: PairTokenizer | None) -> PairsRecord | None:
    if pairs is None:
        return None
    return PairsRecord(
        source_prefix=pairs.source_prefix,
        source_lang=pairs.source_lang,
        target_lang=pairs.target_lang,
    )
