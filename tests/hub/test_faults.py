"""What goes wrong on the way: one clear line each, and a cache that works afterwards."""

from pathlib import Path

import pytest
from loopback import Fault
from worker import NAME, WHOLE, Worker, arrays_of, content, environment, fails

from knn_logits import Datastore

pytest_plugins = ["hub_fixtures"]


def partials(cache):
    return [one for one in Path(cache).rglob("*") if one.name.endswith(".incomplete")]


def is_whole(folder, indexed):
    there, mine = arrays_of(Datastore(folder)), arrays_of(indexed)
    return there.keys() == mine.keys() and all((there[key] == mine[key]).all() for key in mine)


@pytest.mark.parametrize("file", ["tokens.npy", "index.safetensors", "keys-00002.npy"])
def test_wrong_bytes_of_the_right_size(published, worker, cache, indexed, file):
    published.faults[file] = Fault("wrong")
    failed = fails(worker, rf"DamagedError: {file} of org/texts@", name=NAME, cache=cache)
    assert "was deleted" in failed.message
    # The blob is gone, so the next attempt fetches it again, and what was whole stays.
    published.faults.clear()
    published.requests.clear()
    assert is_whole(worker(WHOLE, name=NAME, cache=cache), indexed)
    assert published.sent(file) == (indexed.folder / file).stat().st_size
    assert published.sent("documents.jsonl") == 0 or file == "tokens.npy"


def test_a_file_on_the_hub_that_is_not_the_manifests(hub, worker, cache, indexed):
    files = content(indexed.folder)
    files["tokens.npy"] = files["tokens.npy"][:-4] + b"\0\0\0\0"
    hub.repo(NAME).commit(files)
    fails(worker, r"DamagedError: tokens.npy of org/texts@.*SHA-256", name=NAME, cache=cache)
    files["tokens.npy"] = files["tokens.npy"][:-8]
    hub.repo(NAME).commit(files)
    fails(worker, r"DamagedError: tokens.npy of org/texts@", name=NAME, cache=cache)
    del files["tokens.npy"]
    hub.repo(NAME).commit(files)
    fails(worker, r"HubError: .*not hold a complete datastore", name=NAME, cache=cache)


def test_a_connection_that_breaks_is_taken_up_again(published, worker, cache, indexed):
    published.faults["index.safetensors"] = Fault("cut", times=1)
    assert is_whole(worker(WHOLE, name=NAME, cache=cache), indexed)
    size = (indexed.folder / "index.safetensors").stat().st_size
    assert size < published.sent("index.safetensors") < 2 * size


def test_a_revision_that_is_gone(published, worker, cache):
    gone = f"{NAME}@{'0' * 40}"
    fails(worker, r"HubError: org/texts has no revision 0+ .*newest", name=gone, cache=cache)
    # What is in the cache stays usable after its revision was deleted on the Hub.
    folder = worker(WHOLE, name=NAME, cache=cache)
    pinned = f"{NAME}@{Path(folder).name}"
    published.repo(NAME).commits.clear()
    assert worker(WHOLE, name=pinned, cache=cache) == folder


def test_no_such_datastore_and_no_permission(hub, worker, owner, cache, indexed):
    fails(worker, r"HubError: org/none is neither a folder", name="org/none", cache=cache)
    fails(owner, r"HubError: org/none is neither a folder", name="org/none", cache=cache)
    hub.repo(NAME).commit(content(indexed.folder))
    hub.repo(NAME).gated = True
    fails(worker, r"HubError: org/texts is neither .*gated one log in", name=NAME, cache=cache)
    hub.repo("org/empty").commit({"README.md": b"nothing"})
    fails(
        worker,
        r"HubError: .*org/empty does not hold a complete datastore",
        name="org/empty",
        cache=cache,
    )
    fails(worker, r"DatastoreError: .*does not exist", name="no/such/folder", cache=cache)
    assert not list(cache.rglob("blobs/*"))


@pytest.mark.parametrize("status", [403, 500, 429])
def test_a_hub_that_refuses_a_file(published, worker, cache, indexed, status):
    published.faults["tokens.npy"] = Fault("status", status=status, times=1)
    if status == 429:
        # The client itself waits and asks again.
        assert is_whole(worker(WHOLE, name=NAME, cache=cache), indexed)
        return
    fails(worker, rf"HubError: .*{status}", name=NAME, cache=cache)
    published.faults.clear()
    assert is_whole(worker(WHOLE, name=NAME, cache=cache), indexed)


def test_a_hub_that_is_down_is_not_needed_for_what_is_here(published, worker, cache):
    folder = worker(WHOLE, name=NAME, cache=cache)
    published.down = 503
    assert worker(WHOLE, name=NAME, cache=cache) == folder


def test_no_network(published, cache, tmp_path, worker):
    folder = worker(WHOLE, name=NAME, cache=cache)
    no_sockets = (
        "import socket\n"
        "def refuse(*_, **__):\n"
        "    raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
    )
    offline = Worker(environment(published, tmp_path, HF_HUB_OFFLINE="1"))
    try:
        # The second opening, offline: from the cache, and no socket.
        assert offline(no_sockets + WHOLE, name=NAME, cache=cache) == folder
        fails(offline, r"HubError: .*HF_HUB_OFFLINE", name="org/other", cache=cache)
    finally:
        offline.close()
    unreachable = Worker(environment(published, tmp_path, HF_ENDPOINT="http://127.0.0.1:9"))
    try:
        assert unreachable(WHOLE, name=NAME, cache=cache) == folder
    finally:
        unreachable.close()


def test_a_full_disk(published, worker, cache, indexed):
    """No byte more than a limit can be written: the files that arrived stay, the line says why."""
    limit = max(one.bytes for one in indexed.manifest.files) - 1000
    full = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "old = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, old[1]))\n"
        "try:\n"
        "    Datastore.from_pretrained(name, cache_dir=cache).fetch_keys()\n"
        "finally:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, old)\n"
    )
    fails(worker, r"StorageError: the disk is full.*HF_HOME", full, name=NAME, cache=cache)
    assert partials(cache) == []
    published.requests.clear()
    assert is_whole(worker(WHOLE, name=NAME, cache=cache), indexed)
    assert published.sent("datastore.json") == 0
