"""Builds by processes of torchrun: the bytes of one process, and errors that end all of them."""

import hashlib
import json
import os
from types import SimpleNamespace

import pytest
from forked import Fork, command
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.building import builder
from knn_logits.building import ranks as module
from knn_logits.building.ranks import KeyWork, started_by_torchrun
from knn_logits.engine import keys
from knn_logits.errors import ConfigError

TEXT = "The crane lifts a crate from the quay, and the winch holds it over the water. "


def work(entries, rows, written=0, shards=0):
    return KeyWork(
        folder=None, generation=0, text=None, contexts=SimpleNamespace(entries=entries), dim=1,
        rows=rows, written=written, written_shards=shards, canary={}, sources=None,
    )  # fmt: skip


@given(st.integers(1, 400), st.integers(1, 50), st.integers(1, 6), st.integers(1, 300))
def test_each_key_is_in_one_shard_of_one_rank(entries, rows, world, round_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROUND_BYTES", round_bytes)
        one = work(entries, rows, written=min(entries - 1, 7), shards=2)
        rounds = list(one.rounds(world, row_bytes=2))
    shards = [shard for blocks in rounds for block in blocks for shard in block]
    assert shards == list(range(one.shards))
    assert (one.shards - 1) * rows < entries - one.written <= one.shards * rows
    assert all(len(blocks) == world for blocks in rounds)
    # A round's blocks differ by what the last ones lack.
    assert all(len(blocks[0]) == max(map(len, blocks)) for blocks in rounds)


def test_without_torchrun_it_is_refused(monkeypatch, build, tmp_path):

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not started_by_torchrun()
    with pytest.raises(ConfigError, match="was not started by torchrun"):
        build([TEXT], tmp_path / "s", torchrun=True)
    with pytest.raises(ConfigError, match="either Ray or torchrun"):
        build([TEXT], tmp_path / "s", torchrun=True, ray="local")
    assert not (tmp_path / "s").exists()


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != ".lock"
    }


def of_a_rank(work, rank_1_ends):
    """What each process runs. Small shards make many rounds; rank 1 may end in the third one."""
    module._ROUND_BYTES = 1
    write, written = module.write_array, []

    def ends(path, array):
        written.append(path)
        if len(written) == 3 and os.environ["RANK"] == "1" and rank_1_ends:
            os._exit(9)
        write(path, array)

    module.write_array = ends
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
    monkeypatch.setattr(keys, "_BUFFER_BYTES", 1)
    monkeypatch.setattr(builder, "SHARD_BYTES", 6000)
    alone = run("build", *call, tmp_path / "alone").json
    assert len(list((tmp_path / "alone").glob("keys-*.npy"))) > 10

    def build(*, rank_1_ends=False):
        work = command("build", *call, tmp_path / "s")
        with Fork(lambda: by_torchrun(2, of_a_rank, work, rank_1_ends)) as launcher:
            out, err = launcher.ended()
        return launcher.returncode, out, err

    # Rank 1 ends, and torchrun ends rank 0. Two rounds of two shards each are not lost.
    assert build(rank_1_ends=True)[0] != 0
    kept = json.loads((tmp_path / "s" / "building.json").read_text())["files"]
    assert sum(one["name"].startswith("keys-") for one in kept) == 4
    code, out, err = build()
    assert code == 0, err
    assert "continuing the unfinished build" in err
    assert digests(tmp_path / "s") == digests(tmp_path / "alone")
    # Only the first rank speaks.
    [line] = out.splitlines()
    assert json.loads(line)["entries"] == alone["entries"]
