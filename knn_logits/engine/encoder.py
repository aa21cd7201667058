"""Encodes sentences as vectors by a sentence encoder, a small model beside the language model.

It opens folders in the form of sentence-transformers. That package itself takes 9 seconds to
import and brings SciPy and scikit-learn; this needs only transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from knn_logits.arrays import Array
from knn_logits.engine.forward import multiplies_in
from knn_logits.errors import ConfigError
from knn_logits.locks import cached_property
from knn_logits.store.files import cache_folder
from knn_logits.store.records import EncoderRecord

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
# The environment variable names the encoder that stands in its place, or a folder that holds it;
# empty for none. Without it, a package of weights may be unpacked in one of these folders.
_VARIABLE = "KNN_LOGITS_ENCODER"
_FOLDERS = tuple(
    str(place / "all-MiniLM-L6-v2")
    for place in (Path(sys.prefix) / "share" / "knn-logits", cache_folder())
)
_BATCH, _COMPARED_AT_ONCE, _MAX_TOKENS = 32, 4, 256
_ROWS_AT_ONCE = 1 << 16  # of vectors, in single precision
# Sharpness of the soft minimum, where 0 gives the mean. Chosen on XQuAD, CLAP NQ and NQ-open: see
# docs/research/answers.md.
_SHARPNESS = 4.0
# Sentences without a common subject: their mean cosine is where the encoder's scale begins.
_UNRELATED = (
    "The ferry leaves the harbor at six in the morning.",
    "Compile the module with all optimizations.",
    "Goat cheese ripens in a cold cellar.",
    "Who painted the ceiling of the chapel?",
    "The patient takes two tablets after each meal.",
    "A triangle has three sides.",
    "Members pay their fee in January.",
    "How fast does light travel?",
)


class Encoder:
    """A sentence encoder: a Hub id, or a folder in the form of sentence-transformers.

    `ConfigError` if it cannot be opened. Without `download` it is not fetched from the Hub.
    """

    def __init__(self, name: str, *, download: bool = True) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.id = DEFAULT_ENCODER if name in _FOLDERS else name
        settings: dict[str, Any] = {"local_files_only": not download}
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name, **settings)
            model = AutoModel.from_pretrained(
                name, use_safetensors=True, dtype=torch.float32, **settings
            )
            pooling = _json(name, "1_Pooling/config.json", settings)
            self._prompts = _json(name, "config_sentence_transformers.json", settings)
        except (OSError, ValueError, KeyError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"the sentence encoder {name} cannot be opened: {reason}") from error
        self._by_first = bool(pooling.get("pooling_mode_cls_token"))
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.eval().to(self._device)
        self.sha256 = _sha256(model, self._by_first)
        if self._device.type == "cpu" and multiplies_in(torch.bfloat16):
            model.bfloat16()
        self.dim = int(model.config.hidden_size)  # of a vector
        self._lock = threading.Lock()

    @property
    def record(self) -> EncoderRecord:
        return EncoderRecord(id=self.id, sha256=self.sha256, dim=self.dim)

    def knows(self, language: str) -> bool:
        """Whether the encoder has seen a language, an ISO 639 code. The default knows English."""
        return self.id != DEFAULT_ENCODER or language == "en"

    @torch.no_grad()
    def encode(self, texts: Sequence[str], kind: str = "document") -> Array:
        """Encodes texts as vectors of length 1, float32 [texts, dim], by their first 256 tokens.

        Some encoders read a text after other words if its kind is "query".
        """
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for rows in batches(texts, _BATCH):
            states, mask, _ = self._states([texts[row] for row in rows], kind)
            weights = mask[:, :, None].float()
            mean = (states * weights).sum(dim=1) / weights.sum(dim=1)
            vectors[rows] = normalize(states[:, 0] if self._by_first else mean).cpu().numpy()
        return vectors

    @torch.no_grad()
    def late_interaction(
        self, texts: Sequence[str], question: str, start: int = 0
    ) -> tuple[Array, Array]:
        """Compares texts with a question token by token: 0 like unrelated sentences, 1 at most.

        For each of the question's tokens the largest cosine with a token of a text is taken:
        Khattab and Zaharia (2020), "ColBERT", equation 3. A text about something related lacks a
        few of the tokens, which their soft minimum, -1/b ln mean(exp(-b cosine)), shows more than
        their mean. Returns the soft minima and the means, float32 [texts] each.

        The question's tokens before the character `start` only give meaning to those after it.
        """
        asked, counted, asked_ends = self._states([question], "query", special=False)
        if start and int(asked_ends.max()) < len(question.rstrip()):  # it is too long for the model
            return self.late_interaction(texts, question[start:])
        counted &= asked_ends > start
        found: Array = np.zeros((2, len(texts)), np.float32)
        for rows in batches(texts, _COMPARED_AT_ONCE):
            states, mask, _ = self._states([texts[row] for row in rows], "document")
            found[:, rows] = _interaction(states, mask, asked[0, counted[0]])
        _, unrelated = self._unrelated
        low, mean = (found - unrelated) / (1.0 - unrelated)
        return low, mean

    def tokenize(self, texts: Sequence[Any], most: int, **more: Any) -> Any:
        """The model's inputs for texts or pairs of texts, each cut to `most` tokens."""
        settings = {"padding": True, "truncation": True, "return_tensors": "pt", **more}
        with self._lock:  # padding is a state of the tokenizer
            return self._tokenizer(texts, max_length=most, **settings).to(self._device)

    def _states(
        self, texts: Sequence[str], kind: str, *, special: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The states of tokens, [texts, tokens, dim], which count, and where they end in texts."""
        prompt = (self._prompts.get("prompts") or {}).get(kind) or ""
        inputs = self.tokenize(
            [prompt + text for text in texts],
            _MAX_TOKENS,
            return_special_tokens_mask=True,
            return_offsets_mapping=True,
        )
        marks, mask = inputs.pop("special_tokens_mask"), inputs["attention_mask"].bool()
        ends = inputs.pop("offset_mapping")[:, :, 1] - len(prompt)
        counted = mask if special else mask & (marks == 0)
        return self.model(**inputs).last_hidden_state.float(), counted, ends

    def similarities(self, vectors: Array, query: Array) -> Array:
        """Compares vectors [texts, dim] with that of a question: 0 like unrelated sentences.

        1 is the same direction. The cosine of unrelated sentences is 0.05 to 0.8 by encoder.
        """
        starts = range(0, len(vectors), _ROWS_AT_ONCE)
        parts = [vectors[at : at + _ROWS_AT_ONCE].astype(np.float32) @ query for at in starts]
        cosines: Array = np.concatenate(parts)
        unrelated, _ = self._unrelated
        return (cosines - unrelated) / (1.0 - unrelated)

    @cached_property
    def _unrelated(self) -> tuple[float, Array]:
        """The means of `similarities` and `late_interaction`, [2, 1], of unrelated sentences."""
        others = ~np.eye(len(_UNRELATED), dtype=bool)
        vectors = self.encode(_UNRELATED)
        with torch.no_grad():
            asked, counted, _ = self._states(_UNRELATED, "query", special=False)
            states, mask, _ = self._states(_UNRELATED, "document")
            rows = [one[count] for one, count in zip(asked, counted, strict=True)]
            found = np.stack([_interaction(states, mask, one) for one in rows], axis=1)
        return float((vectors @ vectors.T)[others].mean()), found[:, others].mean(1, keepdims=True)


def _sha256(model: Any, by_first: bool) -> str:
    """The hash of a model's weights and of its pooling."""
    digest = hashlib.sha256(str(by_first).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy())
    return digest.hexdigest()


def batches(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """The numbers of texts in batches of about the same length, which need little padding."""
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    return (order[start : start + size] for start in range(0, len(order), size))


def _interaction(states: Tensor, mask: Tensor, asked: Tensor) -> Array:
    """The soft minima and means of the largest cosines with tokens in a mask, [2, texts]."""
    cosines = normalize(states, dim=-1) @ normalize(asked, dim=-1).T
    largest = cosines.masked_fill(~mask[:, :, None], -1.0).amax(1)
    low = (-_SHARPNESS * largest).exp().mean(-1).log() / -_SHARPNESS
    found: Array = torch.stack([low, largest.mean(-1)]).cpu().numpy()
    return found


def default_encoder() -> str:
    """The name or the folder of the encoder for datastores that name none; empty for none."""
    default = next((name for name in _FOLDERS if Path(name).exists()), DEFAULT_ENCODER)
    return os.environ.get(_VARIABLE, default)


@cache
def encoder_of(record: EncoderRecord) -> Encoder:
    """Opens the encoder of a datastore; `ConfigError` if it is not here or has other weights.

    Only the default is fetched from the Hub: a datastore may be a stranger's.
    """
    problem = ConfigError("there is no sentence encoder here")
    for name in dict.fromkeys(filter(None, [default_encoder(), record.id])):
        try:
            encoder = Encoder(name, download=name == DEFAULT_ENCODER)
        except ConfigError as error:
            problem = error
            continue
        if encoder.sha256 == record.sha256:
            return encoder
        problem = ConfigError(f"the weights of the encoder {name} differ from the datastore's")
    raise problem


def _json(name: str, file: str, settings: dict[str, Any]) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    path = cached_file(
        name,
        file,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **settings,
    )
    if path is None:
        return {}
    read = json.loads(Path(path).read_text(encoding="utf-8"))
    return read if isinstance(read, dict) else {}
