"""Attacks on a datastore's manifest, names, index and documents, with hashes that fit.

Each is a function of the folder and of chance, and returns what it did. The fuzzer changes numbers
and bytes; these change what it does not.
"""

import json
import os

import children  # noqa: F401  (puts the tests' folder on the path)
from folders import read_content, refit, write_content

from knn_logits.store import layout

HUGE = [2**15, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]
NUMBERS = [0, 1, -1, 2, 7, 255, 256, *HUGE, -(2**31), -(2**63), 0.5, 1e308, True, None, "5", [], {}]


def file_of(folder, kind):
    return next(
        one["name"] for one in read_content(folder)["files"] if layout.kind_of(one["name"]) == kind
    )


def places(content, path=()):
    """Every place in nested JSON."""
    found = [path] if path else []
    if isinstance(content, dict):
        for name in content:
            found += places(content[name], (*path, name))
    elif isinstance(content, list):
        for number in range(len(content)):
            found += places(content[number], (*path, number))
    return found


def put(content, path, value):
    for name in path[:-1]:
        content = content[name]
    content[path[-1]] = value


def sizes(folder, chance):
    """Several numbers of the manifest that are huge together."""
    huge = chance.choice(HUGE)
    names = chance.sample(["entries", "documents", "tokens", "dim", "generation", "skipped"], 3)
    content = read_content(folder) | {name: huge + chance.randint(-1, 1) for name in names}
    if chance.random() < 0.5:
        for record in content["files"]:
            if record["shape"] and chance.random() < 0.5:
                record["shape"][0] = huge
    content["settings"]["k"] = chance.choice([1, huge])
    content["index"]["nprobe"] = chance.choice([None, 1, huge])
    write_content(folder, content)
    return huge, names


def names(folder, chance):
    """Files by names that lead elsewhere."""
    content = read_content(folder)
    record = chance.choice(content["files"])
    old = record["name"]
    outside = str(folder.parents[1] / "outside")
    choices = ["../../outside", outside, "/etc/passwd", f"./{old}", f"x/../{old}", old + "\0", ".."]
    choices += [".", "", f"~/{old}", "file:///etc/passwd", "keys-00000.npy/", "\\\\host\\x"]
    record["name"] = chance.choice([*choices, old * 99, old.upper()])
    if chance.random() < 0.3:
        content["files"].append(dict(record))
    write_content(folder, content)
    return old, record["name"][:40]


def kinds_of_file(folder, chance):
    """A link, a pipe, a folder or a device in a file's place."""
    name = chance.choice([*(one["name"] for one in read_content(folder)["files"]), layout.MANIFEST])
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    outside = folder.parents[1] / f"{folder.parent.name}-outside"
    kind = chance.choice(["link", "absolute", "loop", "pipe", "folder", "device", "socket", "deep"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(name)
    elif kind == "device":
        path.symlink_to(chance.choice(["/dev/zero", "/dev/stdin", "/dev/tty", "/proc/self/mem"]))
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.bind(str(path))
            except OSError:
                path.mkdir()
    else:
        outside.write_bytes(content)
        target = f"../../{outside.name}" if kind == "link" else outside
        if kind == "deep":
            (folder / "x").mkdir()
            target = f"x/../../../{outside.name}"
        path.symlink_to(target)
    return name, kind


def many_files(folder, chance):
    content = read_content(folder)
    number = chance.choice([1000, 1000, 20_000])
    shard = next(one for one in content["files"] if "keys" in one["name"])
    content["files"] += [shard | {"name": f"keys.{n + 1}-00000.npy"} for n in range(number)]
    if chance.random() < 0.5:
        content["removed"] = list(range(chance.choice([10, 100_000])))
    write_content(folder, content)
    return number


_FACTORIES = """
IVF1000000000,Flat IVF99999999999999999999,SQ8 PQ9999 IVF4,PQ32x24 IMI2x14,Flat
IVF65536(IVF65536(Flat)),Flat IVF4_HNSW1000000,Flat HNSW1000000000 NSG999999
OPQ32_1000000000,IVF4,PQ32 PCA1000000000,Flat Pad2000000000,Flat LSQ32x30 Residual99x24 RQ4x16
PRQ2x8x16 ZnLattice3x10_6 IVF4,RaBitQ Flat,RFlat IVF-4,Flat IVF4,SQ999 exact auto é IDMap,Flat
L2norm,Flat ITQ32,LSH IVF4,PQ4x4fs IVF2,Flat IVF0,Flat HNSW0,Flat HNSW1,Flat PQ0 PQ0x8 OPQ0,Flat
PCA0,Flat LSH LSHrt SQ0 IVF4,PQ0 IVF1,LSQ4x4 IVF1,PRQ2x2x4 Refine(Flat,Flat) Flat,Refine(PQ4)
IVF1,RQ4x4 RaBitQ RaBitQ8 IVF1,RaBitQ99 IVF2,Flat,RFlat PCAW32,Flat IVF2,ITQ32,LSH RCQ2x4,Flat
IVF1,SQtqmse4 NSG4,Flat HNSW4_2+PQ4
"""
FACTORIES = [*_FACTORIES.split(), "IVF4,Flat" * 20, "(" * 90, "", "\n"]


def factory(folder, chance):
    """Another kind of index than the file holds, or one to be built from the keys."""
    wanted = chance.choice(FACTORIES)
    content = read_content(folder)
    content["index"] |= {"factory": wanted, "nprobe": chance.choice([None, 1, 2**62])}
    content["index"]["train_size"] = chance.choice([None, 1, 2**62])
    content["index"]["seed"] = chance.choice([0, 2**62, 10**30])
    without = chance.random() < 0.5
    if without:
        kept = [one for one in content["files"] if layout.kind_of(one["name"]) != "index"]
        content["files"] = kept
    write_content(folder, content)
    return wanted, "from the keys" if without else "with the file"


def table(folder, chance):
    """Fields of other types, missing ones, numbers out of range, and lines that are no JSON."""
    path = folder / file_of(folder, "documents")
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    made = [None, -1, 0, 2**62, 2**63, 10**400, 1.5, True, [1, 2], {"a": 1}, "x", "\ud800"]
    made += [float("nan"), "x" * chance.choice([10, 10**6, 3 * 10**7])]
    row, field, value = chance.choice(rows), chance.randrange(len(rows[0])), chance.choice(made)
    how = chance.choice(["value", "value", "left out", "one more", "nested", "cut"])
    if how == "value":
        row[field] = value
    elif how == "left out":
        del row[field]
    elif how == "one more":
        row.append(value)
    data = "".join(f"{json.dumps(one)}\n" for one in rows).encode()
    if how == "nested":
        data = b"[" * 10**6 + data
    path.write_bytes(data[: len(data) // 2] if how == "cut" else data)
    refit(folder)
    return how, field, str(value)[:20]


def long_table(folder, chance):
    """Very many short rows."""
    rows = chance.choice([10**5, 10**6])
    path = folder / file_of(folder, "documents")
    path.write_bytes(chance.choice([b'[1,"x",null,null,null]\n', b"\n", b"[]\n"]) * rows)
    fields = {"documents": rows}
    if chance.random() < 0.5:
        fields["tokens"] = rows
    refit(folder, **fields)
    return rows, fields


ALL = [sizes, names, kinds_of_file, many_files, factory, table, long_table]
# These take much memory to make, and some to read.
LARGE = [many_files, table, long_table]
