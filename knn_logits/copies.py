"""`Copies` keeps tensors, and their copies on the devices that ask for them."""

from __future__ import annotations

import torch
from torch import Tensor


class Copies:
    """Tensors by name, with a copy on each device that asked for one."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors
        self._copies: dict[tuple[str, torch.device], Tensor] = {}

    def at(self, device: torch.device, name: str) -> Tensor:
        """Returns the tensor `name` on a device."""
        tensor = self._tensors[name]
        if tensor.device == device:
            return tensor
        if (name, device) not in self._copies:
            # Another thread may have made one meanwhile, which may be in use.
            self._copies.setdefault((name, device), tensor.to(device))
        return self._copies[name, device]
