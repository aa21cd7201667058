"""Attacks on a datastore's manifest, names, index and documents, with hashes that fit.

Each is a function of the folder and of chance, and returns what it did. `extreme_attacks` changes
numbers, and the fuzzer bytes; these change what neither does.
"""

import os

import children  # noqa: F401  (puts the tests' folder on the path)
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
    """Columns of other types, missing values, numbers out of range."""
    path = folder / file_of(folder, "documents")
    found = pq.read_table(path)
    number = chance.randrange(found.num_columns)
    name, rows = found.column_names[number], found.num_rows
    texts = pa.array(["x"] * rows)
    made = [
        pa.array([None] * rows, pa.int64()),
        pa.array([chance.choice([-1, 0, 2**62, 2**63 - 1, -(2**63)])] * rows),
        *(pa.array([value] * rows) for value in (b"\xff\xfe", [1, 2], {"a": {"b": 1}}, 1.5, True)),
        *(pa.array([value] * rows) for value in (float("nan"), None)),
        *(pa.array([1] * rows, kind) for kind in (pa.timestamp("ns"), pa.decimal128(38))),
        *(pa.array([5] * rows, kind) for kind in (pa.uint64(), pa.int8())),
        *(texts.cast(kind) for kind in (pa.large_string(), pa.string_view())),
        *(column.dictionary_encode() for column in (texts, pa.array([5] * rows))),
        pa.array(["x" * chance.choice([10, 10**6, 3 * 10**7])] * rows),
    ]
    column = chance.choice(made)
    try:
        pq.write_table(found.set_column(number, name, column), path)
    except (pa.ArrowException, ValueError):
        pq.write_table(found.drop_columns([name]), path)
    refit(folder)
    return name, str(column.type)


def long_table(folder, chance):
    """Few bytes that stand for very many rows."""
    rows = chance.choice([10**5, 10**6, 10**6, 3 * 10**6])
    path = folder / file_of(folder, "documents")
    ones = pa.array(np.ones(rows, np.int64))
    first = ones if chance.random() < 0.5 else pa.array(np.arange(rows))
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 50]))
    columns = {"first": first, "length": ones, "id": text, "title": text, "uri": text}
    packing = chance.choice(["snappy", "none", "zstd", "gzip"])
    pq.write_table(pa.table(columns | {"metadata": text}), path, compression=packing)
    fields = {"documents": rows}
    if chance.random() < 0.5:
        fields["tokens"] = rows
    refit(folder, **fields)
    return rows, packing, fields


def bomb(folder, chance):
    """Text that is far larger than its file."""
    path = folder / file_of(folder, "documents")
    found = pq.read_table(path)
    packing = chance.choice(["zstd", "snappy", "gzip", "brotli"])
    size, rows = chance.choice([10**7, 10**8]), found.num_rows
    # In one piece: a list of texts is copied text by text, which takes seconds.
    ends = pa.py_buffer(np.arange(0, (rows + 1) * size, size, dtype=np.int32))
    column = pa.StringArray.from_buffers(rows, ends, pa.py_buffer(b"x" * (rows * size)))
    changed = found.set_column(3, "title", column)
    dictionary = chance.random() < 0.5
    # Packing well takes ten seconds, and the lowest level packs one letter as well.
    level = None if packing == "snappy" else 1
    pq.write_table(
        changed, path, compression=packing, compression_level=level, use_dictionary=dictionary
    )
    refit(folder)
    return packing, size


ALL = [sizes, names, kinds_of_file, many_files, factory, table, long_table, bomb]
# These take much memory to make, and some to read.
LARGE = [many_files, table, long_table, bomb]
