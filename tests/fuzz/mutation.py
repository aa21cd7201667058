"""Changes bytes at random: raw, within gzip and zip archives, and within JSON."""

import gzip
import io
import json
import random
import zipfile
import zlib

LARGEST_INPUT = 1 << 18
HUGE = [2**15, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]
NUMBERS = [0, 1, -1, 7, 256, *HUGE, -(2**31), -(2**63), 0.5, 1e308, True, None, "5", [], {}]
# Bytes that mean something to one parser or another.
WORDS = [
    b"\0", b"\n\n", b"\r", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b" " * 999, b"[" * 500,
    b"{" * 500, b"<div>" * 300, b"<!--", b"<![CDATA[", b"<!DOCTYPE x [<!ENTITY a 'b'>]>", b"&a;",
    b"<table><tr><td>", b"</", b"<?xml", b"<script>", b"&#0;", b"&#x10ffff;", b"\\u-1?",
    b"# ", b"```", b"---\n", b"From x\n",
    b"Subject: ", b"Content-Type: multipart/mixed; boundary=a\n\n--a\n", b"=?utf-8?b?////?=",
    b"Content-Transfer-Encoding: base64\n", b"charset=utf-7", b"<</", b">>", b"endobj", b"stream\n",
    b"endstream", b"/Length 999999999", b"/Kids[2 0 R]", b"/Parent 4 0 R", b"/Prev 0", b"/Count -1",
    b"/Filter[/FlateDecode/FlateDecode/LZWDecode]", b"/DecodeParms<</Predictor 15/Columns 99999>>",
    b"/Encrypt 1 0 R", b"xref\n0 999999\n", b"startxref\n0\n", b"BT (a) Tj ET ", b"q " * 500,
    b"NaN", b"1e999", b"9" * 400, b"-1", b'"text":', b'"text":"a"}\n', b"\x93NUMPY\x01\x00",
    b"<|im_end|>", b"PAR1", b"PK\x03\x04", b"\x1f\x8b\x08\0", b"GGUF",
]  # fmt: skip
SIZES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40]
SIZES += [2**62, 2**63 - 1, 2**63, 2**64 - 1]


def bits(data, chance):
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8, 64])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def number(data, chance):
    """An integer of a size that breaks sums, in either order of bytes."""
    width = chance.choice([1, 2, 4, 8])
    value = chance.choice(SIZES) % (1 << (8 * width))
    place = chance.randrange(len(data))
    return (
        data[:place]
        + value.to_bytes(width, chance.choice(["little", "big"]))
        + data[place + width :]
    )


def word(data, chance):
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(WORDS) * chance.choice([1, 1, 1, 3]) + data[place:]


def span(data, chance):
    size = min(len(data), chance.choice([1, 4, 16, 64, 256, 4096]))
    place = chance.randrange(len(data) - size + 1)
    return place, place + size


def without(data, chance):
    first, last = span(data, chance)
    return data[:first] + data[last:]


def repeated(data, chance):
    """A part again and again: deep nesting, long lines, many members."""
    first, last = span(data, chance)
    times = chance.choice([2, 10, 1000, 20_000])
    return (
        data[:last] + data[first:last] * min(times, LARGEST_INPUT // (last - first)) + data[last:]
    )


def noise(data, chance):
    first, last = span(data, chance)
    return data[:first] + chance.randbytes(last - first) + data[last:]


def cut(data, chance):
    return data[: chance.randrange(len(data))]


RAW = [bits, bits, number, word, word, without, repeated, noise, cut]


def raw(data, chance, others):
    """Some changes of bytes, or the end of another file."""
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        if not data:
            return chance.choice(WORDS)
        if others and chance.random() < 0.05:
            other = chance.choice(others)
            data = data[: chance.randrange(len(data))] + other[chance.randrange(len(other) + 1) :]
        else:
            data = chance.choice(RAW)(data, chance)
        data = data[: 4 * LARGEST_INPUT]
    return data


def in_gzip(data, chance, others):
    try:
        plain = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return raw(data, chance, others)
    return gzip.compress(raw(plain, chance, []), 1)


def in_zip(data, chance, others):
    """Changes members of an archive, or their names."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    place = chance.randrange(len(members))
    name, content = members[place]
    if chance.random() < 0.9:
        members[place] = name, raw(content, chance, [])
    else:
        members[place] = chance.choice(["../x", "/x", "x" * 999, ".", name + "\0"]), content
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return out.getvalue()


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


def in_json(data, chance, others):
    """Changes values of a JSON text."""
    try:
        content = json.loads(data)
    except ValueError:
        return raw(data, chance, others)
    for _ in range(chance.choice([1, 1, 2, 4])):
        spots = places(content)
        if not spots:
            break
        strange = ["x" * 10**5, "\ud800", "\0", "../x", " " * 5000, ["a"] * 5000, {"a": {"b": [1]}}]
        spot = chance.choice(spots)
        value = chance.choice([*NUMBERS, *strange, content])
        put(content, spot, json.loads(json.dumps(value)))
    return json.dumps(content).encode()


def in_array(data, chance, others):
    """Changes the numbers of an array, and leaves its header and its size."""
    head, body = data[:128], data[128:]
    for _ in range(chance.choice([1, 1, 2, 8])):
        if body:
            body = chance.choice([bits, number, noise])(body, chance)[: len(body)]
    return head + body


FORMS = {"raw": raw, "array": in_array, "gzip": in_gzip, "zip": in_zip, "json": in_json}


def changed(seeds, form, seed):
    """The input of this seed, which is always the same: a changed one of the seeds.

    Half of the changes are of the bytes themselves, whatever the form.
    """
    chance = random.Random(seed)
    data = chance.choice(seeds)
    change = FORMS[form] if chance.random() < 0.6 else raw
    return change(data, chance, seeds)
