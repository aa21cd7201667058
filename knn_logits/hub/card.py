"""The card of a published datastore: front matter for the Hub's search, and a page for people.

What the package writes stands between two marks and is replaced by the next push; everything else,
and every front matter field that somebody changed, is the user's and stays.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from knn_logits.datastore import layout
from knn_logits.datastore.hub_client import TAG
from knn_logits.datastore.manifest import Manifest

BEGIN = "<!-- knn-logits: from here -->"
END = "<!-- knn-logits: to here, replaced by the next push; write above or below -->"
_FIELDS = "<!-- knn-logits: front matter "
_TAGS = (TAG, "knn-lm", "retrieval", "datastore")
_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
    (10**9, "100M<n<1B"),
)
# Characters of a manifest's text.
_LONGEST = 500
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
# The Hub's names of the licences that text comes under, by what people write.
_LICENSES = re.compile(
    r"cc0-1\.0|cc-by(-sa|-nc|-nd|-nc-sa|-nc-nd)?-[234]\.0|apache-2\.0|mit|bsd-[23]-clause|l?gpl-[23]\.0"
    r"|mpl-2\.0|odc-by|odbl|pddl|gfdl|unlicense|isc|artistic-2\.0"
)


def front_matter(manifest: Manifest) -> dict[str, Any]:
    """The fields by which the Hub finds and sorts a datastore."""
    found: dict[str, Any] = {
        "tags": list(_TAGS),
        "size_categories": [
            next((name for limit, name in _SIZES if manifest.entries < limit), "n>1B")
        ],
        # The files are arrays, which the Hub's viewer of tables cannot show.
        "viewer": False,
    }
    # Any other name is that of a folder on somebody's disk.
    named = "/" in manifest.model.id or manifest.model.revision is not None
    if named and _HUB_NAME.fullmatch(manifest.model.id):
        found["base_model"] = manifest.model.id
    if manifest.license:
        known = license_id(manifest.license)
        found["license"] = known or "other"
        if known is None:
            found["license_name"] = _line(manifest.license)
    return found


def license_id(text: str) -> str | None:
    """The Hub's name of a licence, None for one that it does not list."""
    plain = re.sub(r"[\s_-]+", "-", text.strip().lower())
    return plain if _LICENSES.fullmatch(plain) else None


def page(manifest: Manifest, repo: str, commit_of: str | None, report: str | None = None) -> str:
    """The part of a card that the package writes, in Markdown.

    Args:
        manifest: Of the datastore as it is published.
        repo: Where it is published, "org/name".
        commit_of: A revision to name in the example, None for the newest.
        report: The page that `knn-logits eval --report` wrote.
    """
    load = f'"{repo}"' if commit_of is None else f'"{repo}", revision="{commit_of}"'
    model = _code(manifest.model.id)
    # What a reader copies into a shell.
    name = manifest.model.id if _HUB_NAME.fullmatch(manifest.model.id) else "MODEL"
    lines = [
        f"A [knn-logits](https://pypi.org/project/knn-logits/) datastore: a kNN-LM memory for "
        f"{model}, which looks its next token up in this text, and shows the "
        "passage behind each word.",
        "",
        "```python",
        "from knn_logits import Datastore, KNNLogitsProcessor",
        "",
        f"store = Datastore.from_pretrained({load})",
        "with KNNLogitsProcessor(model, store) as knn:",
        "    output = model.generate(**inputs, logits_processor=[knn])",
        "```",
        "",
        f"`model` is {model}; another one is refused. On the command line: "
        f'`knn-logits generate {name} {repo} --prompt "..."`.',
        "",
        *_table(_facts(manifest)),
        "",
        "### Files",
        "",
        *_table([("file", "size"), *((one.name, _size(one.bytes)) for one in manifest.files)]),
    ]
    if report:
        lines += ["", _lowered(report.strip())]
    return "\n".join(lines)


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    model, key, settings = manifest.model, manifest.key, manifest.settings
    recall = manifest.index.recall
    found = f", recall@{recall.at} {recall.value:.3f}" if recall else ""
    probes = f", nprobe {manifest.index.nprobe}" if manifest.index.nprobe else ""
    joined = ", documents joined into one stream" if manifest.windows.concatenate else ""
    keys = sum(one.bytes for one in manifest.key_shards)
    size = sum(one.bytes for one in manifest.files)
    revision = f", revision {_code(model.revision)}" if model.revision else ""
    state = "fitted to held-out text" if settings.calibrated else "not calibrated"
    return [
        ("what", "value"),
        ("model", f"{_code(model.id)}{revision} ({_text(model.type)}, {_text(model.dtype)})"),
        ("corpus", _text(manifest.source) if manifest.source else "not stated"),
        ("licence of the text", _text(manifest.license) if manifest.license else "not stated"),
        ("entries", f"{manifest.entries:,} of {manifest.documents:,} documents"),
        (
            "size",
            f"{_size(size)}, of which keys {_size(keys)}" if keys else f"{_size(size)}, no keys",
        ),
        ("key", f"{_code(f'{key.module}:{key.side}')}, {manifest.dim} numbers in {manifest.dtype}"),
        ("distance", manifest.metric),
        ("windows", f"{manifest.windows.window} tokens, stride {manifest.windows.stride}{joined}"),
        *([("pairs", _text(str(manifest.pairs)))] if manifest.pairs else []),
        ("index", f"{_code(manifest.index.factory)}{probes}{found}"),
        (
            "settings",
            f"k {settings.k}, lmbda {settings.lmbda:g}, temperature {settings.temperature:g} "
            f"({state})",
        ),
    ]


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    cells = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return [cells[0], "|---|---|", *cells[1:]]


def _line(text: str) -> str:
    """Text from a manifest, which may hold anything, on one line, without what is not to be seen.

    Control characters, and those that turn the direction of what follows, are left out.
    """
    text = " ".join(text.split())
    text = "".join(one for one in text if unicodedata.category(one)[0] != "C")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _text(text: str) -> str:
    """Text from a manifest, for a place in Markdown where it means nothing but itself."""
    return re.sub(r"([\\`*_\[\](){}#!~])", r"\\\1", html.escape(_line(text), quote=False))


def _code(text: str) -> str:
    """Text from a manifest as code, which a backtick would end, and a comment's end a comment."""
    return "`" + re.sub("[<>]", "", _line(text).replace("`", "'")) + "`"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _lowered(report: str) -> str:
    """A report below the headings of the card."""
    return re.sub(r"(?m)^(#{1,5}) ", r"#\1 ", report)


def merged(old: str | None, repo: str, fields: Mapping[str, Any], body: str) -> str:
    """A card with a new generated part and what the user wrote.

    Args:
        old: The card that is there, None when there is none.
        repo: Where the datastore is published.
        fields: From `front_matter`.
        body: From `page`.

    Returns:
        The card, front matter and all.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    # So that no value ends the comment; JSON reads the escapes as the signs themselves.
    values = json.dumps(dict(fields), sort_keys=True).replace(">", "\\u003e")
    noted = f"{_FIELDS}{values.replace('<', chr(92) + 'u003c')} -->"
    generated = "\n".join([BEGIN, noted, "", body, "", END])
    if old is None:
        text, data = f"# {repo.partition('/')[2]}\n\n{generated}\n", dict(fields)
    else:
        card: Any = DatasetCard(old, ignore_metadata_errors=True)
        text = _replaced(card.text, generated)
        data = _fields_kept(card.data.to_dict(), _noted(card.text), fields)
    return f"---\n{DatasetCardData(**data).to_yaml()}\n---\n\n{text.lstrip()}"


def _replaced(text: str, generated: str) -> str:
    first, last = text.find(BEGIN), text.rfind(END)
    if first < 0 or last < first:
        return f"{text.rstrip()}\n\n{generated}\n"
    return text[:first] + generated + text[last + len(END) :]


def _noted(text: str) -> dict[str, Any]:
    """The fields that the package wrote the last time."""
    for line in text.splitlines():
        if line.startswith(_FIELDS):
            try:
                found = json.loads(line[len(_FIELDS) :].removesuffix("-->"))
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _fields_kept(
    there: Mapping[str, Any], written: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, Any]:
    """The user's fields, and the new ones where the user changed nothing."""
    merged = {
        name: value
        for name, value in there.items()
        if name in new or name not in written or value != written[name]
    }
    for name, value in new.items():
        if name in there and isinstance(value, list) and isinstance(there[name], list):
            # Lists are joined: what the package wrote before goes, what the user added stays.
            before = written.get(name, [])
            own = [one for one in there[name] if one not in before]
            gone = [one for one in before if one not in there[name]]
            merged[name] = [one for one in value if one not in gone or one == TAG]
            merged[name] += [one for one in own if one not in merged[name]]
        elif name in there:
            merged[name] = value if there[name] == written.get(name) else there[name]
        elif name not in written:
            merged[name] = value
    return merged


def report_names() -> tuple[str, ...]:
    """Files of an evaluation that are published beside the card: page, plot, numbers."""
    return ("evaluation.md", "evaluation.png", "evaluation.json")


def is_published(name: str) -> bool:
    """Whether a file of a repository is one that a push writes, and may delete."""
    return name == layout.MANIFEST or layout.kind_of(name) is not None or name in report_names()
