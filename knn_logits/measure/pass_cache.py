"""Keeps the states and log p_LM of forward passes in a folder, for runs with other settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from knn_logits.engine.compatibility import model_record
from knn_logits.engine.location import KeyLocation
from knn_logits.store.files import replacing


class PassCache:
    """The passes of one model, by what it reads. Other weights or another key have other names."""

    def __init__(self, folder: str | Path, model: nn.Module, location: KeyLocation) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._model = hashlib.sha256(f"{model_record(model)} {location}".encode())
        for name, tensor in model.state_dict().items():
            self._model.update(name.encode())
            plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._model.update(plain.numpy().data)

    def path(self, inputs: Mapping[str, Tensor]) -> Path:
        """The file of a pass."""
        name = self._model.copy()
        for key, tensor in sorted(inputs.items()):
            name.update(f"{key} {tuple(tensor.shape)}".encode())
            name.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return self._folder / f"{name.hexdigest()}.safetensors"

    @staticmethod
    def read(path: Path) -> tuple[Tensor, Tensor] | None:
        """The states and log p_LM of a pass; None if it was not kept."""
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError):
            return None
        return tensors["states"], tensors["log_p_lm"]

    @staticmethod
    def keep(path: Path, states: Tensor, log_p_lm: Tensor) -> None:
        """Writes a pass."""
        tensors = {"states": states.contiguous().cpu(), "log_p_lm": log_p_lm.contiguous()}
        with replacing(path) as file:
            file.write(save(tensors))
