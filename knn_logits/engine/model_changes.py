"""Notices that a model has changed since it was opened: by training, an adapter or a hook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from knn_logits.engine.compatibility import check_model
from knn_logits.engine.location import KeyLocation
from knn_logits.errors import MismatchError
from knn_logits.store.datastore import Datastore

# The attributes of PEFT's layers that say which adapters act.
_ADAPTERS = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")


def _sampled(parameter: nn.Parameter) -> str:
    """A number of a weight, since a change through `.data` leaves no other trace; none on a GPU."""
    if parameter.device.type != "cpu" or not parameter.numel():
        return ""
    try:
        return str(parameter.data[tuple(size // 2 for size in parameter.shape)].item())
    except (RuntimeError, TypeError):  # packed weights have numbers of their own
        return ""


def _is_of_package(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("knn_logits.")


def weights_state(model: nn.Module) -> list[Any]:
    """Returns what differs once a model's modules, weights, adapters or hooks have changed."""
    state: list[Any] = []
    for module in model.modules():
        inside = vars(module)
        state.append(id(module))
        for parameter in inside["_parameters"].values():
            if parameter is not None:
                try:
                    state += (parameter.data_ptr(), parameter._version)
                except RuntimeError:  # a tensor without memory of its own, or of inference mode
                    state.append(id(parameter))
                state.append(_sampled(parameter))
        for hooks in (inside["_forward_pre_hooks"], inside["_forward_hooks"]):
            state += (id(hook) for hook in hooks.values() if not _is_of_package(hook))
        # An adapter can be switched without a change of any weight.
        if "_active_adapter" in inside:
            state += (str(inside.get(name)) for name in _ADAPTERS)
    return state


class WeightsCheck:
    """Notices that a model was changed after it was compared with datastores."""

    def __init__(self, model: nn.Module, location: KeyLocation) -> None:
        self._model, self._location = model, location
        self._opened = weights_state(model)
        self._states: dict[Path, list[Any]] = {}

    def again(self, stores: Sequence[Datastore]) -> None:
        """Compares the model with datastores again if it may have changed."""
        state = weights_state(self._model)
        for store in stores:
            if self._states.get(store.folder, self._opened) != state:
                try:
                    check_model(self._model, store, self._location)
                except MismatchError as error:
                    raise MismatchError(
                        "the model has changed since it was opened, by an adapter, a hook "
                        f"or training: {error}, or build another datastore with the current model"
                    ) from error
                self._states[store.folder] = state
