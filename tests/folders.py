"""Reads a datastore's folder, and changes it so that its hashes fit again."""

import hashlib
import json

from knn_logits.store import layout
from knn_logits.store.job import record_file
from knn_logits.store.manifest import checksum_of


def names(folder):
    """Lists the files of a folder, without the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != layout.LOCK)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in names(folder)}


def hashes(folder):
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents(folder).items()}


def one_line(caught):
    """Returns the message of an error, after checking that it is a single line."""
    text = str(caught.value)
    assert "\n" not in text
    return text


def write_content(folder, content):
    """Writes any content as a manifest, with a checksum that fits."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    content["checksum"] = checksum_of(content)
    (folder / layout.MANIFEST).write_text(json.dumps(content))


def read_content(folder):
    return json.loads((folder / layout.MANIFEST).read_bytes())


def change(folder, **fields):
    """Changes fields of the manifest, and makes its checksum fit."""
    write_content(folder, read_content(folder) | fields)


def refit(folder, **fields):
    """Updates the manifest's record of each file to the file's present content."""
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
