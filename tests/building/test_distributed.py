"""Keys that other processes compute: the bytes of one process, and errors that end all of them."""

import json
import os

import numpy as np
import pytest
from folders import hashes
from forked import Fork, command

from knn_logits.building.distributed import KeyWorker, piece_of, started_by_torchrun
from knn_logits.engine import windows
from knn_logits.engine.location import find_key
from knn_logits.engine.windows import plan
from knn_logits.errors import ConfigError, MismatchError
from knn_logits.store import writer
from knn_logits.store.layout import CANARY_KEYS

TEXT = "The crane lifts a crate from the quay, and the winch holds it over the water. "


@pytest.mark.parametrize("first_entry", [0, 10, 30])
def test_pieces_give_the_same_keys_as_one_machine(model, store, first_entry, monkeypatch):
    monkeypatch.setattr(windows, "_BUFFER_BYTES", 1)  # many groups
    location = find_key(model, "ffn_input")
    tokens, contexts = np.asarray(store.tokens), store.contexts
    cut = list(plan(contexts.first, contexts.length, 64, 32))
    shape = {"dim": 32, "dtype": "float16", "batch_tokens": 32}
    whole = windows.compute_keys(model, location, tokens, cut, first_entry=first_entry, **shape)
    worker = KeyWorker(model, location, shape, 1, store.checks)
    groups = windows.groups_from(windows.grouped(cut, **shape), first_entry, None)
    pieces = [piece_of(tokens, group, first_entry) for group in groups]
    assert len(pieces) > 2
    found = [worker(piece) for piece in pieces]
    assert np.concatenate(found).tobytes() == np.concatenate(list(whole)).tobytes()


def test_a_worker_that_computes_other_keys_is_refused(model, store):
    location = find_key(model, "ffn_input")
    other = {CANARY_KEYS: store.checks[CANARY_KEYS] + 0.5}
    with pytest.raises(MismatchError, match="computes other keys"):
        KeyWorker(model, location, {}, 1, store.checks | other)


def test_without_torchrun_it_is_refused(monkeypatch, build, tmp_path):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not started_by_torchrun()
    with pytest.raises(ConfigError, match="was not started by torchrun"):
        build([TEXT], tmp_path / "s", torchrun=True)
    assert not (tmp_path / "s").exists()


def of_a_rank(work, rank_1_ends):
    """What each process runs; rank 1 may end with its third piece."""
    compute, pieces = KeyWorker.__call__, []

    def ends(worker, piece):
        pieces.append(piece)
        if len(pieces) == 3 and os.environ["RANK"] == "1" and rank_1_ends:
            os._exit(9)
        return compute(worker, piece)

    KeyWorker.__call__ = ends
    work()


def by_torchrun(ranks, entrypoint, *arguments):
    """What `torchrun --standalone` does once it has read its options; its ranks are forks."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="ranks",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, entrypoint)(*arguments)


def test_two_ranks_write_what_one_process_writes(run, model_folder, tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": str(one), "text": f"Part {one}. {TEXT * (one + 1)}"} for one in range(12)]
    corpus.write_text("\n".join(map(json.dumps, rows)))
    call = [model_folder, corpus, "--window", 64, "--stride", 32, "--batch-tokens", 256]
    call += ["--no-calibrate", "--json", "--out"]
    monkeypatch.setattr(windows, "_BUFFER_BYTES", 1)
    monkeypatch.setattr(writer, "SHARD_BYTES", 6000)
    alone = run("build", *call, tmp_path / "alone").json
    assert len(list((tmp_path / "alone").glob("keys-*.npy"))) > 10

    def build(*, rank_1_ends=False):
        work = command("build", *call, tmp_path / "s")
        with Fork(lambda: by_torchrun(2, of_a_rank, work, rank_1_ends)) as launcher:
            out, err = launcher.ended()
        return launcher.returncode, out, err

    # Rank 1 ends, and torchrun ends rank 0. The keys of four pieces are not lost.
    assert build(rank_1_ends=True)[0] != 0
    kept = json.loads((tmp_path / "s" / "building.json").read_text())["files"]
    assert sum(one["name"].startswith("keys-") for one in kept) > 2
    code, out, err = build()
    assert code == 0, err
    assert "continuing the unfinished build" in err
    assert hashes(tmp_path / "s") == hashes(tmp_path / "alone")
    # Only the first rank prints.
    [line] = out.splitlines()
    assert json.loads(line)["entries"] == alone["entries"]
