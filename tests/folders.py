"""Looking at a datastore's folder, and changing it so that its hashes fit again."""

import hashlib
import json

from knn_logits.datastore import layout
from knn_logits.datastore.job import record_file
from knn_logits.datastore.manifest import Manifest, _checksum


def names(folder):
    """The files of a folder; the lock says nothing about its content."""
    return sorted(path.name for path in folder.iterdir() if path.name != layout.LOCK)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in names(folder)}


def hashes(folder):
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents(folder).items()}


def one_line(caught):
    """The message of a refusal, which is a single line."""
    text = str(caught.value)
    assert "\n" not in text
    return text


def write_content(folder, content):
    """Writes a manifest that may be wrong in anything but its checksum."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    content["checksum"] = _checksum(content)
    (folder / layout.MANIFEST).write_text(json.dumps(content))


def read_content(folder):
    return json.loads((folder / layout.MANIFEST).read_bytes())


def change(folder, **fields):
    """Changes fields of the manifest, and makes its checksum fit."""
    write_content(folder, read_content(folder) | fields)


def refit(folder, **fields):
    """Makes the manifest's record of each file fit what the file now is, like a publisher would."""
    content = read_content(folder)
    files = []
    for record in content["files"]:
        path = folder / record["name"]
        try:
            found = record_file(path).model_dump(mode="json")
        except ValueError:
            found = record | {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
        files.append(found)
    write_content(folder, content | {"files": files} | fields)


def with_manifest(store, **fields):
    """The same files under another valid manifest."""
    Manifest.model_validate(store.manifest.model_copy(update=fields).model_dump()).write(
        store.folder
    )
