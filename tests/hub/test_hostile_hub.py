"""A Hub that means harm: each answer is refused before it does any, in one clear line."""

from pathlib import Path

import pytest
from loopback import Fault
from worker import NAME, OPEN, content, fails

pytest_plugins = ["hub_fixtures"]

MOST = 16 << 20
# The client reads 10 MB at a time, and the system holds some megabytes on both sides.
READ_AHEAD = 24 << 20
LONG = "f" * 300


def everything(folder):
    """All that is in a folder and below it, but for where downloads belong."""
    repo = folder / "cache" / "datasets--org--texts"
    return sorted(
        one
        for one in Path(folder).rglob("*")
        if not (one.is_relative_to(repo) or repo.is_relative_to(one))
        and not one.is_relative_to(folder / "cache" / ".locks" / "datasets--org--texts")
        and one.name not in (".locks", "CACHEDIR.TAG")
    )


@pytest.mark.parametrize("kind", ["announced", "grown"])
def test_a_manifest_without_an_end(published, worker, cache, kind):
    published.faults["datastore.json"] = Fault(kind, size=200 << 20)
    fails(worker, r"HubError: .*larger than the 16,777,216 bytes", name=NAME, cache=cache)
    assert published.sent() <= (0 if kind == "announced" else MOST + READ_AHEAD)
    assert not [one for one in cache.rglob("blobs/*") if one.stat().st_size > MOST]


@pytest.mark.parametrize("kind", ["announced", "grown"])
def test_a_file_that_is_longer_than_the_manifest_says(published, worker, cache, kind):
    published.faults["tokens.npy"] = Fault(kind, size=200 << 20)
    fails(worker, r"HubError: .*larger than the [0-9,]+ bytes", name=NAME, cache=cache)
    assert published.sent("tokens.npy") <= (0 if kind == "announced" else READ_AHEAD)


@pytest.mark.parametrize(
    ("header", "file"), [("ETag", "datastore.json"), ("X-Linked-Etag", "tokens.npy")]
)
@pytest.mark.parametrize(
    "tag", ["../../../outside", "{place}/outside", 'W/"../../../outside"', "..", "", LONG]
)
def test_a_tag_that_leads_elsewhere(published, worker, cache, tmp_path, header, file, tag):
    tag = tag.format(place=tmp_path)
    published.faults[file] = Fault("headers", headers={header: tag})
    fails(worker, r"HubError: .*a malformed tag \(ETag\)", name=NAME, cache=cache)
    assert published.sent(file) == 0
    assert everything(tmp_path) == []


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("commit", ["../../../../outside", "{place}", "main", "", "F" * 40, LONG])
def test_a_commit_that_is_none(published, worker, cache, tmp_path, commit, missing):
    commit = {"X-Repo-Commit": commit.format(place=tmp_path)}
    headers = {404: commit} if missing else commit
    published.faults["datastore.json"] = Fault("headers", headers=headers)
    fails(worker, r"HubError: .*another commit", name=NAME, cache=cache)
    assert published.sent() == 0
    assert everything(tmp_path) == []


def test_a_commit_other_than_the_one_asked_for(published, worker, cache):
    other = {"X-Repo-Commit": "0" * 40}
    published.faults["tokens.npy"] = Fault("headers", headers=other)
    fails(worker, r"HubError: .*another commit", name=NAME, cache=cache)
    published.faults["datastore.json"] = Fault("headers", headers=other)
    pinned = f"{NAME}@{published.repo(NAME).branches['main']}"
    fails(worker, r"HubError: .*another commit", name=pinned, cache=cache / "other")


@pytest.mark.parametrize("file", ["datastore.json", "tokens.npy"])
def test_a_file_that_is_offered_through_xet_comes_from_the_hub_itself(
    published, worker, cache, file
):
    """The package hf_xet would fetch it from any host and of any size, past all checks."""
    route = f"{published.url}/elsewhere"
    headers = {"X-Xet-Hash": "a" * 64, "X-Xet-Refresh-Route": route}
    headers["Link"] = f'<{route}>; rel="xet-auth"'
    published.faults[file] = Fault("headers", headers=headers)
    assert worker(OPEN + "result = len(store)", name=NAME, cache=cache)
    assert published.sent(file)
    assert not [one for one in published.requests if "elsewhere" in one["path"]]


@pytest.mark.parametrize("revision", ["../../outside", "/outside", "a/../../b", "..", ".", "a\\b"])
def test_a_revision_that_leads_elsewhere(published, worker, cache, revision):
    name = f"{NAME}@{revision}"
    fails(worker, r"ConfigError: .*is not a valid revision", OPEN, name=name, cache=cache)
    assert published.requests == []


def test_what_is_refused_here_is_nothing_to_other_callers_of_the_client(published, worker, cache):
    """The client is shared with the rest of the process."""
    published.faults["tokens.npy"] = Fault("headers", headers={"ETag": "a/b"})
    code = (
        "from huggingface_hub import get_hf_file_metadata, hf_hub_url\n"
        "try:\n"
        "    Datastore.from_pretrained(name, cache_dir=cache)\n"
        "except knn_logits.KNNLogitsError:\n"
        "    url = hf_hub_url(name, 'tokens.npy', repo_type='dataset')\n"
        "    result = get_hf_file_metadata(url).etag"
    )
    assert worker(code, name=NAME, cache=cache) == "a/b"
    published.faults.clear()
    published.requests.clear()
    worker(OPEN, name=NAME, cache=cache)
    assert content(next((cache / "datasets--org--texts" / "snapshots").iterdir()))
