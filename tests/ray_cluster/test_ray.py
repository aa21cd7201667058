"""Builds and searches on a Ray cluster of three nodes, some of which are killed on the way.

Every node is a set of processes of this machine. All tests share one cluster, since it takes
seconds to start; nodes that a test kills are replaced before the next one.
"""

import hashlib

import numpy as np
import pytest

import knn_logits
from knn_logits import WindowConfig
from knn_logits.ray.searching import RayIndexes

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray

NODES = 3
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}
WINDOW = WindowConfig(64, 32)


@pytest.fixture(scope="module")
def nodes():
    """The cluster, and its nodes apart from the head."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=False)
    with_node(cluster, include_dashboard=False)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def with_node(cluster, **more):
    """Adds a node. Ray gives it 30 seconds to start, which is too little on a busy machine."""
    for left in reversed(range(6)):
        try:
            cluster.add_node(**NODE, **more)
            return
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise


@pytest.fixture
def spread(cluster):
    """Opens indexes on the cluster, whose actors end with the test."""
    opened = []

    def make(shards=4, **settings):
        opened.append(RayIndexes("auto", shards=shards, **settings))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def cluster(nodes):
    """The cluster with all its nodes alive."""
    while len(nodes.worker_nodes) < NODES - 1:
        with_node(nodes)
    nodes.wait_for_nodes()
    return nodes


@pytest.fixture(scope="module", autouse=True)
def _small_groups():
    """Many pieces of work from a short text, for every build of this file."""
    from knn_logits.engine import windows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "_BUFFER_BYTES", 1)
        yield


@pytest.fixture(scope="module")
def texts():
    chance = np.random.default_rng(0)
    words = ["crane", "winch", "harbour", "lamp", "oil", "keeper", "grade", "seven", "queen", "E42"]
    return [" ".join(chance.choice(words, 60)) for _ in range(24)]


@pytest.fixture(scope="module")
def alone(model, tokenizer, texts, tmp_path_factory):
    """The datastore as one process builds it."""
    folder = tmp_path_factory.mktemp("alone") / "store"
    return build(model, tokenizer, texts, folder)


def build(model, tokenizer, texts, folder, **more):
    return knn_logits.build_datastore(
        model,
        tokenizer,
        texts,
        folder,
        window=WINDOW,
        batch_tokens=256,
        calibrate=False,
        index=knn_logits.IndexConfig("IVF16,SQ8", nprobe=4),
        **more,
    )


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_node_is_killed_during_a_build(cluster, model, tokenizer, texts, alone, tmp_path):
    killed = []

    def progress(phase, done, total):
        if phase == "keys" and done > 600 and not killed:
            killed.append(cluster.worker_nodes.copy().pop())
            cluster.remove_node(killed[0], allow_graceful=False)

    store = build(model, tokenizer, texts, tmp_path / "s", ray="auto", progress=progress)
    assert killed
    assert digests(store.folder) == digests(alone.folder)


def test_the_driver_is_interrupted_and_goes_on(
    cluster, model, tokenizer, texts, alone, tmp_path, monkeypatch
):
    def stops(phase, done, total):
        if phase == "keys" and done > 900:
            raise KeyboardInterrupt

    monkeypatch.setattr("knn_logits.store.writer.SHARD_BYTES", 20_000)
    with pytest.raises(KeyboardInterrupt):
        build(model, tokenizer, texts, tmp_path / "s", ray="auto", progress=stops)
    written = len(list((tmp_path / "s").glob("keys-*.npy")))
    assert written > 0
    done = []

    def watch(phase, number, total):
        if phase == "keys":
            done.append(number)

    store = build(model, tokenizer, texts, tmp_path / "s", ray="auto", progress=watch)
    assert done[0] > 0
    again = build(model, tokenizer, texts, tmp_path / "t")
    assert digests(store.folder) == digests(again.folder)
    assert np.array_equal(store.keys(np.arange(len(store))), alone.keys(np.arange(len(alone))))


def written(model, tokenizer, store, text, **more):
    inputs = tokenizer(text, return_tensors="pt")
    settings = {"k": 16, "lmbda": 0.6, "temperature": 5.0, **more}
    with knn_logits.KNNLogitsProcessor(model, store, **settings) as knn:
        return knn.generate(**inputs, max_new_tokens=24, do_sample=False)[0].tolist()


def test_generation_goes_on_when_an_actor_is_killed(spread, mine, tokenizer, alone):
    prompt = "crane winch harbour"
    expected = written(mine, tokenizer, alone, prompt)
    indexes = spread()
    index = indexes.open(alone, knn_logits.Memory(mine, alone, nprobe=None).config)
    killed = []
    search = index.search

    def searches(queries, k):
        killed.append(None)
        if len(killed) == 3:
            ray.kill(index.actors[1], no_restart=False)
        return search(queries, k)

    index.search = searches
    assert written(mine, tokenizer, alone, prompt, indexes=indexes) == expected
    assert len(killed) >= 3


def test_the_command_line(cluster, run, model_folder, alone, tmp_path):
    (tmp_path / "corpus.txt").write_text("The crane lifts a crate. " * 40)
    shape = ("--window", 64, "--stride", 32, "--json")
    both = []
    for name, more in (("a", ("--ray", "auto")), ("b", ())):
        run("build", model_folder, tmp_path / "corpus.txt", "--out", tmp_path / name, *shape, *more)
        both.append(digests(tmp_path / name))
    assert both[0] == both[1]
    call = ("generate", model_folder, tmp_path / "a", "--prompt", "The crane", "--json")
    plain, spread = run(*call).json, run(*call, "--ray", "auto", "--shards", 2).json
    assert spread["text"] == plain["text"]
