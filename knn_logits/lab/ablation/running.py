"""`ablate` makes one study after another, keeps each that is done, and writes the report."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from knn_logits._version import __version__
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.compatibility import model_record, tokenizer_record
from knn_logits.engine.location import is_encoder_decoder
from knn_logits.engine.tokens import text_ids
from knn_logits.errors import ConfigError, CorpusError, DamagedError, ModelError
from knn_logits.lab.ablation.findings import Finding, write_report
from knn_logits.lab.ablation.gains import (
    study_frequency,
    study_oracle,
    study_part,
    study_position,
    study_tokens,
)
from knn_logits.lab.ablation.shared_parts import Studied
from knn_logits.lab.ablation.studies import (
    study_approximation,
    study_k,
    study_lmbda,
    study_metric,
    study_place,
    study_precision,
    study_size,
    study_temperature,
)
from knn_logits.measure.figures import check_writable, new_figure, writing
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import DEFAULT_K, MOST_SEED, whole_number
from knn_logits.store.files import locked, write_bytes
from knn_logits.store.manifest import read_json

# The studies by name, in the order of the report.
STUDIES: dict[str, Callable[[Studied], Finding]] = {
    "size": study_size,
    "k": study_k,
    "lmbda": study_lmbda,
    "temperature": study_temperature,
    "key": study_place,
    "metric": study_metric,
    "precision": study_precision,
    "approximation": study_approximation,
    "oracle": study_oracle,
    "frequency": study_frequency,
    "position": study_position,
    "part": study_part,
    "tokens": study_tokens,
}
# The text is taken from the beginnings of this many documents.
_DOCUMENTS = 16
PLAN, STUDIES_FOLDER, WORK_FOLDER = "plan.json", "studies", "work"


@dataclass(frozen=True)
class Ablation:
    """The report of all studies: their settings, their findings by name, and its files."""

    settings: dict[str, Any]
    findings: dict[str, Finding]
    files: list[Path]

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "findings": {name: finding.to_dict() for name, finding in self.findings.items()},
            "files": [str(path) for path in self.files],
        }


def ablate(
    model: nn.Module,
    tokenizer: Any,
    corpus: Iterable[Document | str],
    texts: Iterable[Document | str],
    out: str | os.PathLike[str],
    *,
    entries: int = 100_000,
    tokens: int = 20_000,
    k: int = DEFAULT_K,
    studies: Sequence[str] | None = None,
    seed: int = 0,
    command: str | None = None,
    progress: Progress = no_progress,
) -> Ablation:
    """Repeats the studies of the kNN-LM papers, or goes on with an interrupted run in `out`."""
    numbers = {
        "entries": whole_number("entries", entries, 256),
        "tokens": whole_number("tokens", tokens, 256),
        "k": whole_number("k", k, 1),
        "seed": whole_number("seed", seed, 0, MOST_SEED),
    }
    names = _selected(studies)
    if is_encoder_decoder(model):
        raise ModelError("the studies need a causal model, not an encoder-decoder")
    new_figure(1, 1)
    check_writable(out)
    documents = first_tokens(corpus, tokenizer, numbers["entries"])
    sample = list(islice(as_documents(texts), _DOCUMENTS))
    each = -(-numbers["tokens"] // max(1, len(sample)))
    text = first_tokens(sample, tokenizer, numbers["tokens"], each)
    plan = {
        "version": __version__,
        "model": model_record(model).config_sha256,
        "tokenizer": tokenizer_record(tokenizer).sha256,
        "corpus": _digest(documents),
        "text": _digest(text),
        **numbers,
    }
    folder = Path(out)
    work = folder / WORK_FOLDER
    with writing(folder):
        (folder / STUDIES_FOLDER).mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
    with locked(folder):
        _check_plan(folder, plan)
        k, seed = numbers["k"], numbers["seed"]
        studied = Studied(model, tokenizer, documents, text, work, k, seed, progress)
        findings = {}
        for done, name in enumerate(names):
            progress("studies", done, len(names))
            findings[name] = _study(name, studied, folder)
        progress("studies", len(names), len(names))
        settings = {
            "model": model_record(model).id,
            "entries": _predicted(documents, tokenizer),
            "documents": len(documents),
            "tokens of the text": _predicted(text, tokenizer),
            "documents of the text": len(text),
            "largest k": k,
        }
        files = write_report(findings, settings, folder, command)
        if set(names) == set(STUDIES):
            # The keys are many times as large as the report, and all studies are done.
            shutil.rmtree(work, ignore_errors=True)
    return Ablation(settings, findings, files)


def _study(name: str, studied: Studied, folder: Path) -> Finding:
    """Makes a study, or reads its finding of an earlier run."""
    path = folder / STUDIES_FOLDER / f"{name}.json"
    if path.exists():
        try:
            return Finding.from_dict(read_json(path))
        except (TypeError, KeyError, AttributeError) as error:
            raise DamagedError(
                f"{path} cannot be read as a finding: delete it, and run the same command again"
            ) from error
    content = json.dumps(STUDIES[name](studied).to_dict(), indent=1, allow_nan=False)
    write_bytes(path, content.encode() + b"\n")
    # The finding is read from its JSON, so that it equals that of a later run.
    return Finding.from_dict(json.loads(content))


def _selected(studies: Sequence[str] | None) -> list[str]:
    unknown = [name for name in studies or () if name not in STUDIES]
    if unknown:
        raise ConfigError(f"there is no study {unknown[0]!r}: choose from {', '.join(STUDIES)}")
    return [name for name in STUDIES if not studies or name in studies]


def _check_plan(folder: Path, plan: dict[str, Any]) -> None:
    path = folder / PLAN
    if not path.exists():
        write_bytes(path, json.dumps(plan, indent=1).encode() + b"\n")
        return
    content = read_json(path)
    earlier = content if isinstance(content, dict) else {}
    for name, value in plan.items():
        if earlier.get(name) != value:
            raise ConfigError(
                f"{folder} contains an ablation with a different {name}: use the same {name}, or "
                "choose another folder"
            )


def first_tokens(
    documents: Iterable[Document | str], tokenizer: Any, tokens: int, each: int | None = None
) -> list[Document]:
    """The first documents, cut to at most `tokens` tokens together, and `each` per document."""
    taken: list[Document] = []
    left = tokens
    for document in as_documents(documents):
        if left < 2:
            break
        most = left if each is None else min(left, each)
        # A long document is not tokenized as a whole, since a token rarely has 16 characters.
        text = document.text[: 16 * most]
        ids = text_ids(tokenizer, text)
        if len(ids) > most:
            text = tokenizer.decode(ids[:most], skip_special_tokens=True)
        if len(ids) > 1:
            taken.append(Document(text, document.id, title=document.title, uri=document.uri))
        left -= min(most, len(ids))
    if not taken:
        raise CorpusError("no document has at least two tokens: add more text")
    return taken


def _predicted(documents: Sequence[Document], tokenizer: Any) -> int:
    """The tokens of some documents, but the first of each."""
    return sum(len(text_ids(tokenizer, document.text)) - 1 for document in documents)


def _digest(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(json.dumps([document.id, document.text]).encode())
    return digest.hexdigest()
