"""Attacks on a datastore's arrays, manifest and names, with hashes that fit.

Each is a function of the folder, of chance and of another datastore, and returns what it did.
"""

import json
import os

import children  # noqa: F401  (puts the tests' folder on the path)
import numpy as np
from folders import change, read_content, refit, write_content

from knn_logits.store import files, layout

HUGE = [2**15, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]
NUMBERS = [0, 1, -1, 2, 7, 255, 256, *HUGE, -(2**31), -(2**63), 0.5, 1e308, True, None, "5", [], {}]


def arrays_of(folder, name):
    """The arrays of a file by name."""
    from knn_logits.store.reading import read_arrays

    return read_arrays(folder / name)[0]


def file_of(folder, kind):
    return next(
        one["name"] for one in read_content(folder)["files"] if layout.kind_of(one["name"]) == kind
    )


def claim(folder, name, **fields):
    """Changes what the manifest says of a file."""
    content = read_content(folder)
    for record in content["files"]:
        if record["name"] == name:
            record.update(fields)
    write_content(folder, content)


# Arrays


def npy_header(folder, chance, _):
    """A header that promises what is not there."""
    kind = chance.choice(["tokens", "keys"])
    name = file_of(folder, kind)
    shape = tuple(chance.choice([*HUGE, 0, 1, 3, 32, -1]) for _ in range(chance.randint(0, 4)))
    dtype = chance.choice(["<i4", "<f2", "<f4", "|O", "|V8", "<U1000000", "<c16", ">f2", "|b1"])
    text = chance.choice(
        [
            repr({"descr": dtype, "fortran_order": chance.random() < 0.2, "shape": shape}),
            "{'descr': '<f2', 'fortran_order': False, 'shape': (" + "9" * 100 + ",), }",
            "(" * 500 + ")" * 500,
            "{'descr': [('a', '<f2', (" + "9" * 12 + ",))], 'fortran_order': False, 'shape': ()}",
            f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}",
        ]
    )
    body = text.encode()[:3000].ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body
    (folder / name).write_bytes(data + chance.randbytes(chance.choice([0, 64, 4096])))
    refit(folder)
    if chance.random() < 0.7:
        sane = [one for one in shape if one >= 0]
        claim(folder, name, shape=sane, dtype=np.dtype(dtype).name if dtype != "|V8" else None)
    return kind, text[:80]


def values(folder, chance, _):
    """Tokens and keys out of their range."""
    kind = chance.choice(["tokens", "keys"])
    name = file_of(folder, kind)
    array = np.load(folder / name)
    flat = array.reshape(-1)
    for _ in range(chance.randint(1, 5)):
        wrong = [np.nan, np.inf, -np.inf] if kind == "keys" else [-1, 384, 2**31 - 1, -(2**31)]
        flat[chance.randrange(len(flat))] = chance.choice(wrong)
    files.write_array(folder / name, array)
    model = read_content(folder)["model"]
    if chance.random() < 0.5:
        model["vocabulary"] = chance.choice([None, 2**31, 2**40, 1, 10**30, 384])
    refit(folder, model=model)
    return kind, model["vocabulary"]


def other_array(folder, chance, _):
    """An array of another type or shape, in good order by itself."""
    kind = chance.choice(["tokens", "keys"])
    name = file_of(folder, kind)
    array = np.load(folder / name)
    dtype = chance.choice([np.int8, np.int32, np.int64, np.float16, np.float32, np.float64, bool])
    array = np.nan_to_num(array).astype(dtype)
    shape = chance.choice([array.shape, array.shape[::-1], (array.size,), (1, *array.shape)])
    files.write_array(folder / name, array.reshape(shape)[: chance.choice([None, None, 0, 1, -1])])
    refit(folder)
    return kind, dtype.__name__, shape


# The manifest


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


def manifest_value(folder, chance, _):
    content = read_content(folder)
    chosen = []
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        path = chance.choice(places(content))
        value = chance.choice([*NUMBERS, "x" * chance.choice([1, 10**5]), "\ud800", "\0", "../x"])
        put(content, path, value)
        chosen.append((path, str(value)[:20]))
    try:
        write_content(folder, content)
    except (UnicodeError, ValueError):
        (folder / layout.MANIFEST).write_bytes(json.dumps(content).encode())
    return chosen


def sizes(folder, chance, _):
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


def names(folder, chance, _):
    """Files by names that lead elsewhere."""
    content = read_content(folder)
    record = chance.choice(content["files"])
    old = record["name"]
    outside = str(folder.parent / "outside")
    choices = ["../outside", outside, "/etc/passwd", f"./{old}", f"x/../{old}", old + "\0", ".."]
    choices += [
        ".",
        "",
        f"~/{old}",
        "file:///etc/passwd",
        "keys-00000.npy/",
        "\\\\host\\x",
        old * 99,
    ]
    record["name"] = chance.choice([*choices, old.upper()])
    if chance.random() < 0.3:
        content["files"].append(dict(record))
    write_content(folder, content)
    return old, record["name"][:40]


def kinds_of_file(folder, chance, _):
    """A link, a pipe, a folder or a device in a file's place."""
    name = chance.choice([*(one["name"] for one in read_content(folder)["files"]), layout.MANIFEST])
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    outside = folder.parent / f"{folder.name}-outside"
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
        target = f"../{outside.name}" if kind == "link" else outside
        if kind == "deep":
            (folder / "x").mkdir()
            target = f"x/../../{outside.name}"
        path.symlink_to(target)
    return name, kind


def json_text(folder, chance, _):
    """JSON that is hard to read."""
    path = folder / layout.MANIFEST
    text = path.read_text()
    depth = chance.choice([100, 900, 5000, 1_000_000])
    kind = chance.randrange(9)
    if kind == 0:
        text = text.replace('"format"', '"format": 1, "format"', 1)
    elif kind == 1:
        name = chance.choice(["name", "k", "id", "entries", "checksum", "files"])
        text = text.replace(f'"{name}":', f'"{name}": 5, "{name}":', 1)
    elif kind == 2:
        text = chance.choice(["[", '{"a":', "[[],"]) * depth
    elif kind == 3:
        nested = "[" * depth + "]" * depth
        text = text.replace('"license": null', f'"license": {nested}', 1)
    elif kind == 4:
        text = text.replace(
            '"entries": ', '"entries": ' + "9" * chance.choice([20, 4000, 10**6]), 1
        )
    elif kind == 5:
        text = text.replace("0.25", chance.choice(["NaN", "Infinity", "-Infinity", "1e999999"]), 1)
    elif kind == 6:
        content = json.loads(text)
        content["license"] = "x" * chance.choice([10**6, 15 << 20, 17 << 20])
        write_content(folder, content)
        return "long", len(content["license"])
    elif kind == 7:
        path.write_bytes(text.encode(chance.choice(["utf-16", "utf-32", "utf-8-sig"])))
        return "encoding"
    else:
        text = text[:-3] + chance.choice(["\0", ",", "}", "]]", " // x", "\ud800"[:0] + "}}"])
    path.write_text(text)
    return kind, depth


def many_files(folder, chance, _):
    content = read_content(folder)
    number = chance.choice([1000, 1000, 20_000])
    shard = next(one for one in content["files"] if "keys" in one["name"])
    content["files"] += [shard | {"name": f"keys.{n + 1}-00000.npy"} for n in range(number)]
    if chance.random() < 0.5:
        content["removed"] = list(range(chance.choice([10, 100_000])))
    write_content(folder, content)
    return number


def removed(folder, chance, _):
    number = read_content(folder)["documents"]
    choices = [list(range(number)), [number], [-1], [0, 0], [1, 0], [2**62], [10**30], [0.0], ["0"]]
    wanted = chance.choice([*choices, [True]])
    change(folder, removed=wanted)
    return wanted
