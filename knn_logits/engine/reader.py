"""Reads a question with a text, and tells whether the text answers it: a cross-encoder.

Nogueira and Cho (2019), "Passage Re-ranking with BERT". It is the default sentence encoder with
low-rank changes of its weights (Hu et al. 2021, "LoRA"), which benchmarks/train_reader.py trains.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.encoder import Encoder, batches

# Trained on SQuAD 1.1 (CC BY-SA 4.0) for the encoder with this hash.
_CHANGES = Path(__file__).with_suffix(".safetensors")
_ENCODER = "a7791c6d2b35155e7fef09d01562c8975344b8a00f2d75516efdab115543ceed"
_BATCH, _MAX_TOKENS = 4, 192


class Reader:
    """A cross-encoder that has the tokenizer of an encoder, and its weights with changes."""

    def __init__(self, encoder: Encoder, changes: dict[str, Tensor]) -> None:
        self._tokenize = encoder.tokenize
        self._model = with_changes(encoder.model, changes)
        self._weight, self._bias = (changes[f"head.{name}"].float() for name in ("weight", "bias"))

    @torch.no_grad()
    def log_odds(self, question: str, texts: Sequence[str]) -> Array:
        """The log-odds that each of some texts answers a question, float32 [texts].

        Beyond 192 tokens of both the end of a text is not read.
        """
        found: Array = np.zeros(len(texts), np.float32)
        for rows in batches(texts, _BATCH):
            pairs = [(question, texts[row]) for row in rows]
            inputs = self._tokenize(pairs, _MAX_TOKENS)
            states = self._model(**inputs).last_hidden_state
            head = pooled(states, inputs).cpu() @ self._weight.T + self._bias
            found[rows] = head[:, 0].numpy()
        return found


def pooled(states: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The head's input: [CLS] and the mean of the question's tokens, float32 [texts, 2 dim]."""
    states = states.float()
    asked = (inputs["attention_mask"] * (1 - inputs["token_type_ids"]))[:, :, None]
    return torch.cat([states[:, 0], (states * asked).sum(1) / asked.sum(1)], 1)


def with_changes(model: Any, changes: dict[str, Tensor]) -> Any:
    """A copy of a model with changes of its weights.

    A change `NAME.a` [rank, inputs] and `NAME.b` [outputs, rank] adds b a to the matrix of NAME;
    any other replaces a weight.
    """
    changed = copy.deepcopy(model)
    weights = changed.state_dict()
    for name, change in changes.items():
        if name.endswith(".a"):
            matrix = weights[f"{name[:-2]}.weight"]
            added = changes[f"{name[:-2]}.b"].float() @ change.float()
            matrix.copy_(matrix.float() + added.to(matrix.device))
        elif name in weights:
            weights[name].copy_(change)
    return changed


@cache
def reader_of(encoder: Encoder) -> Reader | None:
    """The reader that has an encoder's weights, or None if none was trained for them."""
    return Reader(encoder, load_file(_CHANGES)) if encoder.sha256 == _ENCODER else None
