"""`StepGraphs` replays a step of a memory as a CUDA graph: one launch in place of some hundred."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from knn_logits.locks import new_lock

logger = logging.getLogger(__name__)

Step = Callable[..., Sequence[Tensor]]

# Number of plain calls before a shape is captured, and maximum number of graphs.
_PLAIN_CALLS, _MAX_GRAPHS = 2, 16
# Before this version, a capture disturbs what other threads draw from the GPU's random numbers.
_LEAST_TORCH = (2, 13)
# Only one capture may be under way in a process.
_CAPTURE = threading.Lock()


def can_replay() -> bool:
    """Whether a step may be captured while other threads use the device."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= _LEAST_TORCH


class StepGraphs:
    """Captures a method of tensors, which never waits for the device, once for each shape."""

    def __init__(self, step: Step) -> None:
        # The method's object owns the graphs, and is not kept alive by them.
        self._method = weakref.WeakMethod(step)
        self._seen: dict[tuple[torch.Size, ...], int] = {}
        self._graphs: OrderedDict[tuple[torch.Size, ...], _Graph] = OrderedDict()
        self._eager: set[tuple[torch.Size, ...]] = set()
        self._lock = new_lock(self)
        self._pool: Any = None
        self._stream: Any = None
        self._read: Any = None

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Calls the function. Inputs may be on the CPU, except for the first."""
        shape = tuple(one.shape for one in inputs)
        with self._lock:
            graph = None if shape in self._eager else self._graph(shape, inputs)
            if graph is None:
                device = inputs[0].device
                return list(self._step(*(one.to(device, non_blocking=True) for one in inputs)))
            # All graphs share memory, so results are copied before the next graph runs, also where
            # another thread has another stream.
            torch.cuda.current_stream(inputs[0].device).wait_event(self._read)
            results = [one.clone() for one in graph.replayed(inputs)]
            self._read.record(torch.cuda.current_stream(inputs[0].device))
            return results

    @property
    def _step(self) -> Step:
        step = self._method()
        assert step is not None
        return step

    def _graph(self, shape: tuple[torch.Size, ...], inputs: Sequence[Tensor]) -> _Graph | None:
        if shape in self._graphs:
            self._graphs.move_to_end(shape)
            return self._graphs[shape]
        self._seen[shape] = self._seen.get(shape, 0) + 1
        if self._seen[shape] <= _PLAIN_CALLS:
            return None
        try:
            with _CAPTURE, torch.cuda.device(inputs[0].device):
                if self._pool is None:
                    self._pool = torch.cuda.graph_pool_handle()
                    self._stream, self._read = torch.cuda.Stream(), torch.cuda.Event()
                self._graphs[shape] = _Graph(self._step, inputs, self._pool, self._stream)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            logger.warning(f"a step is not replayed as a CUDA graph: {reason}")
            self._eager.add(shape)
            return None
        if len(self._graphs) > _MAX_GRAPHS:
            del self._seen[self._graphs.popitem(last=False)[0]]
        return self._graphs[shape]


class _Graph:
    """The graph of one shape, with the memory of its inputs and outputs."""

    def __init__(self, step: Step, inputs: Sequence[Tensor], pool: Any, stream: Any) -> None:
        current = torch.cuda.current_stream()
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = [torch.empty_like(one, device=inputs[0].device) for one in inputs]
            self._fill(inputs)
            # Libraries allocate their workspaces at their first call on a stream.
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                step(*self._inputs)
            current.wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            settings = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
            try:
                with torch.cuda.graph(self._graph, **settings):
                    self._outputs = step(*self._inputs)
            finally:
                torch.cuda.set_stream(current)

    def _fill(self, inputs: Sequence[Tensor]) -> None:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)

    def replayed(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        self._fill(inputs)
        self._graph.replay()
        return self._outputs
