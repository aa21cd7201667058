"""A Hub on the loopback interface with a datastore, and clients in processes of their own."""

import pytest
from conftest import TEXTS
from handmade import shards_of
from loopback import PRIVATE_TOKEN, Hub
from worker import NAME, Worker, content, environment

import knn_logits


@pytest.fixture(scope="session")
def indexed(build, tmp_path_factory):
    """A datastore with its own index, and with keys in several shards."""
    with shards_of(16 << 10):
        store = build(
            [f"{text} Number {number}." for number in range(4) for text in TEXTS],
            tmp_path_factory.mktemp("stores") / "indexed",
            window=knn_logits.WindowConfig(64, 32),
            index=knn_logits.IndexConfig("IVF4,SQ8", nprobe=4),
            k=16,
            lmbda=0.4,
            temperature=5.0,
            license="CC BY-SA 3.0",
            source="eight sentences",
        )
    assert len(store.manifest.key_shards) > 3
    return store


@pytest.fixture(scope="session")
def one_hub():
    hub = Hub()
    yield hub
    hub.close()


def emptied(hub):
    hub.repos.clear()
    hub.faults.clear()
    hub.requests.clear()
    hub.down = None
    return hub


@pytest.fixture
def hub(one_hub):
    """The Hub, empty and without faults."""
    return emptied(one_hub)


@pytest.fixture
def published(hub, indexed):
    """The Hub with the datastore on it."""
    hub.repo(NAME).commit(content(indexed.folder))
    return hub


@pytest.fixture(scope="session")
def worker(one_hub, tmp_path_factory):
    """A client that is not logged in."""
    one = Worker(environment(one_hub, tmp_path_factory.mktemp("home")))
    yield one
    one.close()


@pytest.fixture(scope="session")
def owner(one_hub, tmp_path_factory):
    """A client that is logged in as the owner of every repository."""
    home = tmp_path_factory.mktemp("owner")
    one = Worker(environment(one_hub, home, HF_TOKEN=PRIVATE_TOKEN))
    yield one
    one.close()


@pytest.fixture
def cache(tmp_path):
    """A clean cache of the Hub."""
    return tmp_path / "cache"
