"""Makes the card of a published datastore; what a user wrote outside its marked part stays."""

from __future__ import annotations

import html
import re
import unicodedata
from pathlib import Path
from typing import Any

from knn_logits.settings.registry import settings_line
from knn_logits.store.hub_client import TAG
from knn_logits.store.manifest import Manifest

BEGIN = "<!-- knn-logits: from here -->"
END = "<!-- knn-logits: to here, replaced by the next push; write above or below -->"
_TEMPLATE = Path(__file__).parent / "templates" / "card.txt"
# The most characters that are shown of a text from a manifest.
_MAX_CHARACTERS = 500
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
# The Hub's names of common licences of text, by the names that people write.
_LICENSES = re.compile(
    r"cc0-1\.0|cc-by(-sa|-nc|-nd|-nc-sa|-nc-nd)?-[234]\.0|apache-2\.0|mit|bsd-[23]-clause|l?gpl-[23]\.0"
    r"|mpl-2\.0|odc-by|odbl|pddl|gfdl|unlicense|isc|artistic-2\.0"
)


def card(manifest: Manifest, repo: str, revision: str | None = None, old: str | None = None) -> str:
    """Makes the card of a datastore, or replaces the generated part of the `old` one.

    What the front matter of the old card says stays, but for the model.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    fields = front_matter(manifest)
    new: Any = DatasetCard.from_template(
        DatasetCardData(**fields),
        str(_TEMPLATE),
        title=repo.partition("/")[2],
        begin=BEGIN,
        end=END,
        **_values(manifest, repo, revision),
    )
    text = new.text
    if old is not None:
        present: Any = DatasetCard(old, ignore_metadata_errors=True)
        kept = present.data.to_dict() | {"base_model": fields.get("base_model")}
        fields |= {name: value for name, value in kept.items() if value is not None}
        if TAG not in fields["tags"]:
            fields["tags"] = [TAG, *fields["tags"]]
        text = _replaced(present.text, text[text.index(BEGIN) :].rstrip())
    return f"---\n{DatasetCardData(**fields).to_yaml()}\n---\n\n{text.strip()}\n"


def front_matter(manifest: Manifest) -> dict[str, Any]:
    """Makes the fields by which the Hub finds and sorts a datastore."""
    fields: dict[str, Any] = {
        "tags": [TAG, "knn-lm", "retrieval", "datastore"],
        # The files are arrays, and the Hub's viewer shows only tables.
        "viewer": False,
    }
    # Any other name is a folder on somebody's disk.
    on_hub = "/" in manifest.model.id or manifest.model.revision is not None
    if on_hub and _HUB_NAME.fullmatch(manifest.model.id):
        fields["base_model"] = manifest.model.id
    if manifest.license:
        license_id = re.sub(r"[\s_-]+", "-", manifest.license.strip().lower())
        if _LICENSES.fullmatch(license_id):
            fields["license"] = license_id
        else:
            fields |= {"license": "other", "license_name": _line(manifest.license)}
    return fields


def _values(manifest: Manifest, repo: str, revision: str | None) -> dict[str, Any]:
    """The values of the template, which escapes text of others by `code` and `text`."""
    model = manifest.model.id
    return {
        "manifest": manifest,
        "repo": repo,
        # A reader copies this into a shell.
        "shell_model": model if _HUB_NAME.fullmatch(model) else "MODEL",
        "load": repo if revision is None else f"{repo}@{revision}",
        "bytes": sum(record.bytes for record in manifest.files),
        "key_bytes": sum(record.bytes for record in manifest.key_shards),
        "settings": settings_line(manifest.settings),
        "code": _code,
        "text": _text,
        "size": lambda size: f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB",
    }


def _line(text: str) -> str:
    """Makes text from a manifest fit for one line, without control and direction characters."""
    text = " ".join(text.split())
    text = "".join(char for char in text if unicodedata.category(char)[0] != "C")
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def _text(text: str) -> str:
    """Escapes text from a manifest for Markdown."""
    return re.sub(r"([\\`*_\[\](){}#!~|])", r"\\\1", html.escape(_line(text), quote=False))


def _code(text: str) -> str:
    """Makes text from a manifest code in Markdown, without backticks and ends of comments."""
    plain = re.sub("[<>]", "", _line(text).replace("`", "'"))
    return "`" + plain.replace("|", r"\|") + "`"


def _replaced(text: str, generated: str) -> str:
    first, last = text.find(BEGIN), text.rfind(END)
    if first < 0 or last < first:
        return f"{text.rstrip()}\n\n{generated}\n"
    return text[:first] + generated + text[last + len(END) :]
