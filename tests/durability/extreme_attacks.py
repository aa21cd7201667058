"""Numbers at their extremes, put into datastores and into files of earlier systems.

Each attack is a function of the folder and of chance. It returns what it did, whether the result
contradicts itself so that a reader has to refuse it, and the kind of the part that it changed.
"""

import json
import math
import struct
import sys
from pathlib import Path

import attacks
import numpy as np
from attacks import file_of
from folders import read_content, refit, write_content

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from legacy_files import csr_arrays, csr_pickle

from knn_logits.store import files, layout
from knn_logits.store.reading import read_arrays

WHOLE = [-1, 2**15, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**31), -(2**62), -(2**63)]
REAL = [math.nan, math.inf, -math.inf]
LARGE = [3.4e38, -3.4e38, 1e30, 65504.0, 0.0, -1.0]
# What an index keeps as bytes, though it is float32.
_AS_BYTES = ("centroids", "codes")


def _written(folder, name, arrays, metadata):
    files.write_arrays(folder / name, arrays, metadata)
    refit(folder)


def _some(folder, chance, kind):
    name = file_of(folder, kind)
    arrays, metadata = read_arrays(folder / name)
    return name, arrays, metadata, chance.choice(sorted(arrays))


def _kind(folder, chance):
    kinds = {layout.kind_of(one["name"]) for one in read_content(folder)["files"]}
    return chance.choice(sorted(kinds & {"index", "gate", "checks"}))


def number_of_an_array(folder, chance):
    """One number, or several, of any array."""
    kind = _kind(folder, chance)
    name, arrays, metadata, chosen = _some(folder, chance, kind)
    one, wrong = arrays[chosen].copy(), False
    flat = one.reshape(-1)
    if not flat.size:
        return "nothing", False, kind
    floats = flat.dtype.kind == "f"
    if kind == "index" and chosen in _AS_BYTES:
        flat_or_lists = "sizes" not in arrays or chosen == "centroids"
        floats = flat_or_lists and flat.size % 4 == 0
        flat = flat.view(np.float32) if floats else flat
    value = chance.choice(REAL + LARGE if floats else WHOLE)
    for _ in range(chance.choice([1, 1, 3, len(flat)])):
        place = chance.randrange(len(flat))
        with np.errstate(all="ignore"):
            flat[place] = np.array(value).astype(flat.dtype)
    if floats:
        wrong = not math.isfinite(value)
    elif flat.dtype.kind == "i":
        # Of the probe, -1 says that nothing was found.
        wrong = kind == "index" or int(flat.min()) < -1 or int(flat.max()) > 2**30
    # Distances of a probe are infinite where nothing is found.
    wrong = wrong and chosen != layout.PROBE_DISTANCES
    _written(folder, name, arrays | {chosen: one}, metadata)
    return (kind, chosen, value), wrong, kind


def whole_array(folder, chance):
    """An array of another length, type or shape; empty; missing; one that is very long."""
    kind = _kind(folder, chance)
    name, arrays, metadata, chosen = _some(folder, chance, kind)
    one = arrays[chosen]
    how = chance.choice(["cut", "longer", "empty", "type", "flat", "missing", "many"])
    with np.errstate(all="ignore"):
        changed = {
            "cut": lambda: one[:-1],
            "longer": lambda: np.concatenate([one, one]),
            "empty": lambda: one[:0],
            "type": lambda: one.astype(chance.choice(["i1", "u8", "f8", "f2", "?"])),
            "flat": lambda: one.reshape(1, -1, 1),
            "missing": lambda: None,
            "many": lambda: np.resize(one, (200_000, *one.shape[1:])) if one.size else one,
        }[how]()
    arrays = {key: value for key, value in arrays.items() if key != chosen}
    if changed is not None:
        arrays[chosen] = changed
    _written(folder, name, arrays, metadata)
    # Canary and probe may be empty or missing: that is said, and not refused.
    wrong = kind == "index" and not (chosen.endswith(".b") and how in ("empty", "flat"))
    wrong = wrong and not (how == "flat" and chosen not in ("sizes", "ids"))
    same = changed is not None and changed.shape == one.shape and changed.dtype == one.dtype
    return (kind, chosen, how), wrong and not same and how != "flat", kind


def sizes_that_wrap(folder, chance):
    """Sizes of lists whose sum in int64 is right, and entries that are there twice."""
    try:
        name, arrays, metadata, _ = _some(folder, chance, "index")
    except StopIteration:
        return number_of_an_array(folder, chance)
    if "sizes" not in arrays:
        return number_of_an_array(folder, chance)
    sizes, size = arrays["sizes"], len(arrays["ids"])
    how = chance.choice(["wrapped", "negative", "twice", "shifted"])
    if how == "wrapped":
        made = np.zeros(max(5, len(sizes)), np.int64)
        made[:4], made[4] = 2**62, size
        arrays["sizes"] = made if len(sizes) >= 5 else np.resize(made, len(sizes))
    elif how == "negative":
        arrays["sizes"] = np.concatenate([[-(2**62), 2**62 + size], np.zeros(len(sizes) - 2)])
        arrays["sizes"] = arrays["sizes"].astype(np.int64)
    elif how == "twice":
        arrays["ids"] = np.zeros_like(arrays["ids"])
    else:
        arrays["ids"] = arrays["ids"] + chance.choice([-1, 1, 2**31, 2**62])
    _written(folder, name, arrays, metadata)
    return ("index", how), True, "index"


def number_of_a_table(folder, chance):
    """Tokens, keys, clusters and the lengths of the documents."""
    kind = chance.choice(["tokens", "keys", "clusters", "documents"])
    name = file_of(folder, kind)
    if kind == "documents":
        rows = [json.loads(line) for line in (folder / name).read_bytes().splitlines()]
        value = chance.choice(WHOLE)
        before = [row[0] for row in rows]
        for row in [chance.choice(rows)] if chance.random() < 0.5 else rows[:4]:
            row[0] = value
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        refit(folder)
        return (kind, value), before != [row[0] for row in rows], kind
    array = np.load(folder / name)
    value = chance.choice(REAL if kind == "keys" else WHOLE)
    with np.errstate(all="ignore"):
        array.reshape(-1)[chance.randrange(array.size)] = np.array(value).astype(array.dtype)
    files.write_array(folder / name, array)
    refit(folder)
    limit = len(np.load(folder / name)) if kind == "clusters" else 384
    wrong = kind == "keys" or int(array.min()) < 0 or int(array.max()) >= limit
    return (kind, value), wrong, kind


def number_of_the_manifest(folder, chance):
    content = read_content(folder)
    places = [one for one in attacks.places(content) if one[0] != "format_version"]
    numbers = []
    for path in places:
        value = content
        for step in path:
            value = value[step]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append(path)
    chosen = chance.choice(numbers)
    value = chance.choice([*WHOLE, 2**63, 2**64, 10**30, 0, *REAL, 1e308, 0.5])
    attacks.put(content, chosen, value)
    write_content(folder, content)
    counted = chosen[0] in ("entries", "documents", "tokens", "dim", "removed", "files")
    negative = not value >= 0 or value == math.inf
    # Another document may be the removed one.
    possible = chosen[0] == "removed" and value == 0
    return (chosen, value), (counted or negative) and not possible, "manifest"


# Files of an earlier system


def old_clusters(folder, chance):
    (path,) = folder.glob("members_*.pkl")
    entries = int(path.name.split("_")[2])
    clusters = np.random.default_rng(0).integers(0, 7, entries)
    indptr, indices = (one.astype(np.int64) for one in csr_arrays(clusters))
    how = chance.choice(["wrapped", "place", "columns", "shape", "rows"])
    shape = [len(indptr) - 1, entries]
    value = chance.choice(WHOLE)
    if how == "wrapped":
        indptr = np.array([0, 2**62, -(2**63), -(2**62), entries])
        shape[0] = len(indptr) - 1
    elif how == "place":
        indptr[chance.randrange(len(indptr))] = value
    elif how == "columns":
        indices[chance.randrange(len(indices))] = value
    elif how == "shape":
        shape[chance.randrange(2)] = value
    else:
        indptr = np.concatenate([indptr, [entries] * 1000])
        shape[0] = len(indptr) - 1
    if chance.random() < 0.3:
        indptr, indices = indptr.astype(np.uint64), indices.astype(np.uint64)
    path.write_bytes(csr_pickle(clusters, _shape=tuple(shape), indptr=indptr, indices=indices))
    return ("clusters", how, value), how != "rows", "clusters"


def old_index(folder, chance):
    """A number of any width at the beginning of FAISS's file, of its lists, or anywhere."""
    (path,) = folder.glob("*.indexed")
    data = bytearray(path.read_bytes())
    lists = max(0, data.find(b"ilar"))
    span = chance.choice([(0, 200), (lists, lists + 80), (0, len(data) - 8)])
    place = chance.randrange(span[0], min(span[1], len(data) - 8))
    if chance.random() < 0.8:
        place -= place % 4
    value = chance.choice([one for one in WHOLE if one >= -(2**31)] + [0, 1])
    form = "<q" if chance.random() < 0.7 or not -(2**31) <= value < 2**31 else "<i"
    data[place : place + struct.calcsize(form)] = struct.pack(form, value)
    path.write_bytes(data)
    return ("index", place, value), False, "index"


def old_values(folder, chance):
    (path,) = folder.glob("*_vals.npy")
    values = np.frombuffer(path.read_bytes(), "<i4").copy()
    value = chance.choice([one for one in WHOLE if -(2**31) <= one < 2**31])
    values[chance.randrange(len(values))] = value
    path.write_bytes(values.tobytes())
    return ("values", value), False, "values"


def old_keys(folder, chance):
    path = next(folder.glob("*_keys.npy"), None)
    if path is None:
        return old_index(folder, chance)
    keys = np.frombuffer(path.read_bytes(), "<f2").copy()
    value = chance.choice(REAL)
    keys[chance.randrange(len(keys))] = value
    path.write_bytes(keys.tobytes())
    return ("keys", value), False, "keys"


def old_name(folder, chance):
    """Other numbers in the names of the files."""
    (path,) = folder.glob("*_vals.npy")
    _, _, entries, dim, _ = path.name.split("_")
    wanted = [entries, dim]
    wanted[chance.randrange(2)] = str(chance.choice([0, 2**31, 2**63, 10**30, 10**200]))
    for one in list(folder.iterdir()):
        with_numbers = one.name.replace(f"_{entries}_{dim}", f"_{wanted[0]}_{wanted[1]}")
        try:
            one.rename(folder / with_numbers)
        except OSError:
            return "a name that is too long", False, "values"
    return ("name", wanted), False, "values"


NEW = [number_of_an_array] * 4 + [whole_array] * 2 + [sizes_that_wrap] * 2
NEW += [number_of_a_table] * 2 + [number_of_the_manifest] * 3
OLD = [old_clusters] * 4 + [old_index] * 4 + [old_values, old_keys, old_name]
