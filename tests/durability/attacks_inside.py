"""Attacks on what lies in a datastore's files: checks, index, documents; and the list of all."""

import json
import struct

import attacks
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attacks import HUGE, arrays_of, file_of
from folders import read_content, refit, write_content

from knn_logits.store import files, layout

# Canary and probe


def checks(folder, chance, _):
    name = file_of(folder, "checks")
    arrays = arrays_of(folder, name)
    chosen = chance.choice(sorted(arrays))
    shape = tuple(chance.choice([0, 1, 2, 8, 32, 33, 1000]) for _ in range(chance.randint(0, 3)))
    dtype = chance.choice(["i1", "i4", "i8", "u8", "f2", "f4", "f8", "?"])
    fill = chance.choice([0, 1, -1, 7, 2**31, 2**62, np.nan, np.inf, 1e38])
    with np.errstate(all="ignore"):
        made = np.full(shape, fill, np.float64).astype(dtype)
    arrays[chosen] = chance.choice([made, arrays[chosen].astype(dtype), arrays[chosen][:-1]])
    if chance.random() < 0.1:
        del arrays[chosen]
    files.write_arrays(folder / name, arrays, {})
    refit(folder)
    return chosen, shape, dtype, fill


# Safetensors


def safetensors_header(folder, chance, _):
    kind = chance.choice(["checks", "checks", "index"])
    try:
        name = file_of(folder, kind)
    except StopIteration:
        name = file_of(folder, "checks")
    data = (folder / name).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    one = header[chance.choice([key for key in header if key != "__metadata__"])]
    field = chance.choice(["data_offsets", "shape", "dtype", "all"])
    if field == "data_offsets":
        one[field] = [chance.choice([*HUGE[:-2], 0, 1, len(body)]) for _ in range(2)]
    elif field == "shape":
        one[field] = [chance.choice([*HUGE[:-2], 0, 1, 2]) for _ in range(chance.randint(0, 5))]
        if chance.random() < 0.3:
            one["shape"] = [1] * 5000
    elif field == "dtype":
        one[field] = chance.choice(
            ["F64", "BF16", "F8_E4M3", "C64", "I4", "BOOL", "U64", "X", "F4"]
        )
    else:
        header = {str(n): dict(one) for n in range(chance.choice([2, 1000]))}
    text = json.dumps(header).encode()
    length = chance.choice([len(text), len(text), len(text), 0, 2**40, 2**63, len(text) - 1])
    (folder / name).write_bytes(struct.pack("<Q", length) + text + body)
    refit(folder)
    return name, field, str(one)[:100]


def mutated(folder, chance, _):
    """Bytes of any file changed at random."""
    kinds = ["documents", "documents", "checks", "tokens", "index"]
    try:
        name = file_of(folder, chance.choice(kinds))
    except StopIteration:
        name = file_of(folder, "documents")
    data = bytearray((folder / name).read_bytes())
    for _ in range(chance.choice([1, 1, 2, 8, 64])):
        place = chance.randrange(len(data))
        data[place] = chance.choice([0, 0xFF, 0x7F, 0x80, chance.randrange(256)])
    (folder / name).write_bytes(data)
    refit(folder)
    return name


# The index


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


def factory(folder, chance, _):
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


def index_arrays(folder, chance, other):
    try:
        name = file_of(folder, "index")
    except StopIteration:
        return factory(folder, chance, other)
    arrays = arrays_of(folder, name)
    chosen = chance.choice(sorted(arrays))
    one = arrays[chosen].copy()
    kind = chance.choice(["fill", "dtype", "shape", "place", "missing", "shuffled", "sizes"])
    with np.errstate(all="ignore"):
        if kind == "fill":
            fill = chance.choice([0, -1, 255, np.nan, np.inf, 2**40])
            one = np.full(one.shape, fill, np.float64).astype(one.dtype)
        elif kind == "dtype":
            one = one.astype(chance.choice(["i1", "i4", "f2", "f4", "f8", "u1", "?"]))
        elif kind == "shape":
            one = chance.choice([one[:-1], one[:0], np.concatenate([one, one]), one.reshape(1, -1)])
        elif kind == "place" and one.size:
            flat = one.reshape(-1)
            if one.dtype.kind == "f":
                flat[chance.randrange(len(flat))] = chance.choice([np.nan, np.inf, 1e38])
            else:
                wrong = chance.choice([-1, 2**31, 2**62, 0])
                flat[chance.randrange(len(flat))] = np.array(wrong).astype(one.dtype)
        elif kind == "shuffled":
            one = np.random.default_rng(chance.randrange(100)).permutation(one)
        elif kind == "sizes" and "sizes" in arrays:
            chosen, one = "sizes", arrays["sizes"].copy()
            one[0], one[1] = chance.choice([(-1, 1), (2**62, -(2**62)), (2**63 - 1, 1), (0, 0)])
    if kind == "missing":
        del arrays[chosen]
    else:
        arrays[chosen] = one
    files.write_arrays(folder / name, arrays, {})
    refit(folder)
    return chosen, kind


# The table of documents


def table(folder, chance, _):
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


def long_table(folder, chance, _):
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


def bomb(folder, chance, _):
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


def footer(folder, chance, _):
    """The description at a table's end, with lies in it."""
    path = folder / file_of(folder, "documents")
    data = path.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0]
    body, end = data[: -8 - size], bytearray(data[-8 - size : -8])
    kind = chance.choice(["bytes", "length", "pages", "insert", "cut"])
    if kind == "bytes":
        for _ in range(chance.choice([1, 2, 4])):
            end[chance.randrange(len(end))] = chance.choice([0xFF, 0x7F, 0x80, 0, 1, 0xFE])
    elif kind == "insert":
        place = chance.randrange(len(end))
        long = [b"\xff\xff\xff\xff\x0f", b"\xfe" * 9 + b"\x01", b"\x80" * 30]
        end[place:place] = chance.choice(long)
    elif kind == "pages":
        body = bytearray(body)
        for _ in range(chance.choice([1, 2, 4])):
            body[chance.randrange(4, len(body))] = chance.choice([0xFF, 0x7F, 0x80, 0, 1, 0xFE])
    elif kind == "cut":
        body = body[: chance.randrange(4, len(body))]
    length = len(end)
    if kind == "length":
        length = chance.choice([0, 1, 2**31, 2**32 - 1, len(data), size - 1])
    path.write_bytes(bytes(body) + bytes(end) + struct.pack("<I", length) + b"PAR1")
    refit(folder)
    return kind


# Each once, which is what a short run tries. At these places the two that write most draw a
# million rows unpacked, and a tenth of the largest text.
EACH = [attacks.npy_header, attacks.values, attacks.other_array, attacks.manifest_value]
EACH += [attacks.sizes, attacks.names, attacks.kinds_of_file, attacks.json_text]
EACH += [attacks.many_files, attacks.removed, checks, safetensors_header, long_table]
EACH += [mutated, factory, index_arrays, table, footer, bomb]
# Those with the most forms come more often in a long run.
ALL = [*EACH, attacks.manifest_value, checks, safetensors_header, mutated, factory, index_arrays]
ALL += [table, footer, footer]
