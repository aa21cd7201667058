"""Makes the card of a published datastore: front matter for the Hub's search, a page for people.

The part that the package writes is between two marks, and the next push replaces it. All other text
belongs to the user and stays, and so does every field of the front matter that somebody changed.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from knn_logits.settings.config import suffix_words
from knn_logits.store import layout
from knn_logits.store.hub_client import TAG
from knn_logits.store.manifest import Manifest

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
# The most characters that are shown of a text from a manifest.
_LONGEST = 500
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
# The Hub's names of common licences of text, by the names that people write.
_LICENSES = re.compile(
    r"cc0-1\.0|cc-by(-sa|-nc|-nd|-nc-sa|-nc-nd)?-[234]\.0|apache-2\.0|mit|bsd-[23]-clause|l?gpl-[23]\.0"
    r"|mpl-2\.0|odc-by|odbl|pddl|gfdl|unlicense|isc|artistic-2\.0"
)


def front_matter(manifest: Manifest) -> dict[str, Any]:
    """Makes the fields by which the Hub finds and sorts a datastore."""
    found: dict[str, Any] = {
        "tags": list(_TAGS),
        "size_categories": [
            next((name for limit, name in _SIZES if manifest.entries < limit), "n>1B")
        ],
        # The files are arrays, and the Hub's viewer shows only tables.
        "viewer": False,
    }
    # Any other name is a folder on somebody's disk.
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
    """Returns the Hub's name of a licence; None if the Hub does not list it."""
    plain = re.sub(r"[\s_-]+", "-", text.strip().lower())
    return plain if _LICENSES.fullmatch(plain) else None


def page(manifest: Manifest, repo: str, commit_of: str | None, report: str | None = None) -> str:
    """Makes the package's part of a card, in Markdown.

    Args:
        manifest: The manifest of the datastore as it is published.
        repo: The repository that it is published in, "org/name".
        commit_of: A revision that the example names; None for the newest.
        report: The report that `knn-logits eval --report` wrote.
    """
    load = f'"{repo}"' if commit_of is None else f'"{repo}", revision="{commit_of}"'
    model = _code(manifest.model.id)
    # A reader copies this into a shell.
    name = manifest.model.id if _HUB_NAME.fullmatch(manifest.model.id) else "MODEL"
    does = "looks its next token up in this text, and shows the passage behind each word"
    if manifest.learned is not None:
        does = "asks rows that were learned from a text, and shows the rows behind each word"
    lines = [
        f"A [knn-logits](https://pypi.org/project/knn-logits/) datastore, which is a kNN-LM memory "
        f"for {model}. The model {does}.",
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
        *_entries(manifest),
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
            f"k {settings.k}, lmbda {settings.lmbda:g}, temperature {settings.temperature:g}"
            f"{suffix_words(settings.suffix_weight)} ({state})",
        ),
    ]


def _entries(manifest: Manifest) -> list[tuple[str, str]]:
    learned = manifest.learned
    if learned is None:
        return [("entries", f"{manifest.entries:,} of {manifest.documents:,} documents")]
    taken = f"{learned.entries:,} tokens of {learned.documents:,} documents"
    return [("rows", f"{manifest.entries:,}, learned from {taken}"), ("text", "none is kept")]


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    cells = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return [cells[0], "|---|---|", *cells[1:]]


def _line(text: str) -> str:
    """Makes text from a manifest, which may hold anything, fit for one line.

    Control characters are left out, and so are characters that reverse the direction of text.
    """
    text = " ".join(text.split())
    text = "".join(one for one in text if unicodedata.category(one)[0] != "C")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _text(text: str) -> str:
    """Escapes text from a manifest for Markdown."""
    return re.sub(r"([\\`*_\[\](){}#!~])", r"\\\1", html.escape(_line(text), quote=False))


def _code(text: str) -> str:
    """Makes text from a manifest code in Markdown, without backticks and ends of comments."""
    return "`" + re.sub("[<>]", "", _line(text).replace("`", "'")) + "`"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _lowered(report: str) -> str:
    """Lowers the headings of a report below those of the card."""
    return re.sub(r"(?m)^(#{1,5}) ", r"#\1 ", report)


def merged(old: str | None, repo: str, fields: Mapping[str, Any], body: str) -> str:
    """Merges a new generated part with what the user wrote in the present card.

    Args:
        old: The present card; None if there is none.
        repo: The repository that the datastore is published in.
        fields: The result of `front_matter`.
        body: The result of `page`.

    Returns:
        The card with its front matter.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    # The escape keeps a value from ending the comment. JSON reads it as the character itself.
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
    """Returns the fields that the package wrote the last time."""
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
    """Returns the user's fields, and the new ones where the user changed nothing."""
    merged = {
        name: value
        for name, value in there.items()
        if name in new or name not in written or value != written[name]
    }
    for name, value in new.items():
        if name in there and isinstance(value, list) and isinstance(there[name], list):
            # Lists are merged: values that the package wrote before go, and the user's stay.
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
    """The files of an evaluation that are published with the card: page, plot, numbers."""
    return ("evaluation.md", "evaluation.png", "evaluation.json")


def is_published(name: str) -> bool:
    """Whether a push writes files of this name, and so may delete them."""
    return name == layout.MANIFEST or layout.kind_of(name) is not None or name in report_names()
