"""`StepGraphs` replays a step of a memory as a CUDA graph: one launch in place of some hundred."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from knn_logits.locks import new_lock

Step = Callable[..., Sequence[Tensor]]

# A shape is captured when it comes for the third time. The graphs of this many shapes are kept.
_SEEN, _KEPT = 2, 16


class StepGraphs:
    """Captures a function of tensors once for each shape of its inputs.

    Args:
        step: A function that neither waits for the device nor reads a number from it.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._seen: dict[tuple[torch.Size, ...], int] = {}
        self._graphs: OrderedDict[tuple[torch.Size, ...], _Graph] = OrderedDict()
        self._lock = new_lock(self)
        self._pool: Any = None

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Calls the function. Inputs may be on the CPU, except for the first."""
        shape = tuple(one.shape for one in inputs)
        with self._lock:
            self._seen[shape] = self._seen.get(shape, 0) + 1
            if self._seen[shape] <= _SEEN:
                device = inputs[0].device
                return list(self._step(*(one.to(device, non_blocking=True) for one in inputs)))
            if shape not in self._graphs:
                self._pool = self._pool or torch.cuda.graph_pool_handle()
                self._graphs[shape] = _Graph(self._step, inputs, self._pool)
                if len(self._graphs) > _KEPT:
                    self._graphs.popitem(last=False)
            self._graphs.move_to_end(shape)
            # All graphs share memory, so the results are copied before the next one runs.
            return [one.clone() for one in self._graphs[shape].replayed(inputs)]


class _Graph:
    """The graph of one shape, with the memory of its inputs and outputs."""

    def __init__(self, step: Step, inputs: Sequence[Tensor], pool: Any) -> None:
        device = inputs[0].device
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device):
            self._inputs = [torch.empty_like(one, device=device) for one in inputs]
            self._fill(inputs)
            # Libraries allocate their workspaces at their first call on a stream.
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                step(*self._inputs)
            torch.cuda.current_stream(device).wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._outputs = step(*self._inputs)

    def _fill(self, inputs: Sequence[Tensor]) -> None:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)

    def replayed(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        self._fill(inputs)
        self._graph.replay()
        return self._outputs
