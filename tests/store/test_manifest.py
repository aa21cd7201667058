import json
from pathlib import Path

import pytest
from folders import write_content
from forked import Fork
from handmade import make_manifest

from knn_logits.errors import DamagedError, DatastoreError, IncompleteError
from knn_logits.store import layout
from knn_logits.store.manifest import read_manifest
from knn_logits.store.records import FileRecord, RecallRecord

SHA = "0" * 64


def file(name, **fields):
    return {"name": name, "bytes": 1, "sha256": SHA, **fields}


FILES = [file(layout.TOKENS), file(layout.DOCUMENTS), file(layout.CHECKS)]


def write(folder, content):
    """Writes a manifest with a checksum that fits, or bytes."""
    if isinstance(content, dict):
        write_content(folder, content)
    else:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / layout.MANIFEST).write_bytes(data)


def valid():
    return make_manifest(files=tuple(FileRecord(**one) for one in FILES))


def content(**fields):
    return valid().model_dump(mode="json") | fields


def error(folder, kind=DamagedError):
    with pytest.raises(DatastoreError) as caught:
        read_manifest(folder)
    assert type(caught.value) is kind
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_round_trip(tmp_path):
    manifest = make_manifest(
        entries=7,
        documents=2,
        tokens=9,
        license="CC0-1.0",
        source="a town's “chronicle” \ud800",
        files=(
            FileRecord(name=layout.TOKENS, dtype="int32", shape=(9,), bytes=164, sha256=SHA),
            FileRecord(name=layout.DOCUMENTS, bytes=5, sha256=SHA),
            FileRecord(name="keys-00000.npy", dtype="float16", shape=(4, 4), bytes=1, sha256=SHA),
            FileRecord(name="keys.2-00000.npy", dtype="float16", shape=(3, 4), bytes=1, sha256=SHA),
            FileRecord(name="checks.2.safetensors", bytes=5, sha256=SHA),
        ),
        generation=2,
        removed=(1,),
    )
    manifest = manifest.model_copy(
        update={
            "index": manifest.index.model_copy(
                update={"recall": RecallRecord(at=64, value=1, queries=2), "nprobe": 3}
            )
        }
    )
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert [one.name for one in manifest.key_shards] == ["keys-00000.npy", "keys.2-00000.npy"]
    assert manifest.file("tokens").shape == (9,)
    assert manifest.file("checks").name == "checks.2.safetensors"
    assert manifest.file("index") is None
    text = (tmp_path / layout.MANIFEST).read_text()
    assert text.endswith("}\n")
    assert "“chronicle”" in text


def test_what_is_no_datastore_and_what_is_not_finished(tmp_path):
    text = error(tmp_path / "none", DatastoreError)
    assert "does not exist" in text
    assert "knn-logits build" in text
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        assert "is not a datastore" in error(path, DatastoreError)
    (tmp_path / layout.JOURNAL).write_text("{}")
    assert "run the same `knn-logits build` again" in error(tmp_path, IncompleteError)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"\0" * 10]
)
def test_what_is_not_json(tmp_path, data):
    write(tmp_path, data)
    assert layout.MANIFEST in error(tmp_path)


@pytest.mark.parametrize("version", [1, "2", None, [[[1]]]])
def test_an_unknown_format_version(tmp_path, version):
    write(tmp_path, {"format": "knn-logits datastore", "format_version": version})
    text = error(tmp_path, DatastoreError)
    assert "another format version" in text
    assert "build the datastore again" in text


COUNTS = ["entries", "documents", "tokens", "dim", "skipped"]
SETTINGS = {"k": 1, "lmbda": 0.5, "temperature": 1.0}
EXACT = {"factory": "exact", "requested": "auto"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in COUNTS for value in (-1, "5", None)),
        *((name, 10**30) for name in (*COUNTS[:4], "generation")),
        ("dim", 0),
        *(("removed", value) for value in ([-1], ["0"])),
        *{"dtype": "object", "metric": "L2", "model": {}}.items(),
        *(("files", value) for value in (None, {})),
        *(("windows", {"window": w, "stride": s}) for w, s in ((1, 1), (8, 9))),
        *(("settings", SETTINGS | one) for one in ({"k": 0}, {"lmbda": 1.5}, {"temperature": 0})),
        *(("index", EXACT | one) for one in ({"factory": 5}, {"nprobe": 0}, {"recall": {"at": 1}})),
        ("index", {"factory": "exact"}),
        ("surprise", 1),
        ("model.weights_url", "http://example.org"),
        *((f"files.0.{name}", value) for name, value in {
            "bytes": -1, "sha256": "x", "shape": "9", "dtype": 5, "name": 5, "url": "x"}.items()),
    ],
)  # fmt: skip
def test_wrong_values(tmp_path, name, value):
    whole = content(files=[dict(one) for one in FILES])
    *path, last = name.split(".")
    place = whole
    for step in path:
        place = place[int(step) if step.isdecimal() else step]
    place[last] = value
    write(tmp_path, whole)
    assert name in error(tmp_path)


STRANGE = ["../tokens.npy", "/etc/passwd", "sub/tokens.npy", "tokens.pt", "keys-0.npy", "", "."]
STRANGE += ["keys-00000.npy\n", "keys-0000\u0660.npy"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"files": [*FILES, file(name)]}, "names unknown files") for name in STRANGE),
        *(
            ({"files": [*FILES, file(name)]}, "names two files of one kind")
            for name in (layout.TOKENS, "tokens.1.npy", "checks.3.safetensors")
        ),
        *(
            ({"files": [one for one in FILES if one is not left_out]}, f"lacks files of {kind}")
            for left_out, kind in zip(FILES, ("tokens", "documents", "checks"), strict=True)
        ),
        *(
            ({"documents": 2, "removed": removed}, "removed")
            for removed in ([1, 0], [0, 0], [2], [-1, 0])
        ),
    ],
)
def test_parts_that_do_not_fit_one_another(tmp_path, fields, message):
    write(tmp_path, content(**fields))
    assert message in error(tmp_path)


def test_a_manifest_of_absurd_size(tmp_path):
    with (tmp_path / layout.MANIFEST).open("wb") as large:
        large.truncate((16 << 20) + 1)
    assert "too large" in error(tmp_path)


# The checksum


@pytest.mark.parametrize(
    ("old", "new"),
    [('"k": 8', '"k": 9'), ('"l2"', '"ip"'), (SHA, "1" + SHA[1:]), ('"test"', '"Test"')],
)
def test_a_manifest_that_was_edited(tmp_path, old, new):
    valid().write(tmp_path)
    path = tmp_path / layout.MANIFEST
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    text = error(tmp_path)
    assert "its checksum is wrong" in text
    assert "knn-logits tune --write" in text


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": "9" * 10**6},
        {"format_version": 2, "x" * 10**6: 1},
        {"files": [{"name": f"strange-{n}", "bytes": 0, "sha256": "0" * 64} for n in range(9999)]},
    ],
)
def test_a_refusal_says_little_of_what_a_stranger_wrote(tmp_path, change):
    write(tmp_path, content(**change))
    with pytest.raises(DatastoreError) as caught:
        read_manifest(tmp_path)
    assert len(str(caught.value)) < 1100
    assert "\n" not in str(caught.value)


FIELDS = {f"x{number}": 0 for number in range(500_000)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say")
@pytest.mark.parametrize(
    "change",
    [
        {"files": [{}] * 1_000_000},
        {"files": [{"shape": ["a"] * 1_000_000}]},
        {"removed": [[]] * 1_000_000},
        {"model": FIELDS},
    ],
    ids=range(4),
)
def test_a_refusal_takes_little_memory(tmp_path, change):
    """Of every wrong value an error is made, if none stops before: 20 GB for 16 MB."""
    resource = pytest.importorskip("resource")
    write(tmp_path, json.dumps(content(**change)).encode())

    def refused():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (400 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        print(error(tmp_path))

    with Fork(refused) as child:
        text, errors = child.ended()
    assert child.returncode == 0, errors[-2000:]
    assert "rebuild it" in text
