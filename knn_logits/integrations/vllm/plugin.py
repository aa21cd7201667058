"""The entry points of vLLM: `register` gives each worker a memory, and a route names sources.

`KNN_LOGITS_DATASTORE` names the datastores. vLLM calls `register` in each of its processes.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import vllm
from fastapi import HTTPException
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.worker.worker_base import WorkerWrapperBase

from knn_logits.errors import ConfigError, ModelError
from knn_logits.integrations.vllm.requests import check_request
from knn_logits.integrations.vllm.stepping import Stepping
from knn_logits.integrations.vllm.vllm_model import VLLMModel, keep_ffn_input
from knn_logits.search.combined import open_stores

# The folders or Hub names of datastores, separated by commas.
DATASTORE = "KNN_LOGITS_DATASTORE"
# The functions wrapped here are no public interface of vLLM, and change between its releases.
VERSIONS = ("0.32.",)


def register() -> None:
    """Prepares vLLM. Without `KNN_LOGITS_DATASTORE` an engine works as before."""
    if datastores() and not vllm.__version__.startswith(VERSIONS):
        wanted = ", ".join(f"{version}x" for version in VERSIONS)
        raise ModelError(f"knn-logits works with vLLM {wanted}, not {vllm.__version__}")
    if datastores():
        # The states and the rows of a step are taken from this runner.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    InputProcessor._validate_params = _checking(InputProcessor._validate_params)
    # A process of a worker calls this in `init_worker`, and `init_device` after it.
    WorkerWrapperBase.init_device = _attaching(WorkerWrapperBase.init_device)


def datastores() -> list[str]:
    return [name for name in os.environ.get(DATASTORE, "").split(",") if name]


def _checking(validate: Any) -> Any:
    @wraps(validate)
    def checked(processor: Any, params: Any, *rest: Any) -> Any:
        try:
            check_request(getattr(params, "extra_args", None), datastores())
        except ConfigError as error:
            raise VLLMValidationError(str(error)) from error  # the API's status 400
        return validate(processor, params, *rest)

    return checked


def _attaching(init_device: Any) -> Any:
    @wraps(init_device)
    def attached(wrapper: Any) -> None:
        init_device(wrapper)
        _attach(wrapper.worker, datastores())

    return attached


def _attach(worker: Any, names: list[str]) -> None:
    """Gives a worker what `collective_rpc` calls, and a memory once its cache is there."""
    worker.knn_build = lambda *given: VLLMModel(worker.model_runner).build(*given)
    if not names:
        return
    # A folder that is none is refused before the model is loaded.
    stores = open_stores(names)
    load, warm_up = worker.load_model, worker.compile_or_warm_up_model

    def loaded(**given: Any) -> None:
        load(**given)
        if stores[0].manifest.key.name == "ffn_input":
            keep_ffn_input(worker.model_runner)

    def opened() -> Any:
        times = warm_up()
        stepping = Stepping(worker.model_runner, stores)
        worker.knn_sources = stepping.sources.of
        return times

    worker.load_model, worker.compile_or_warm_up_model = loaded, opened


class SourcesEndpoint:
    """`GET /knn/sources/{id}`, the sources of an answer; `VLLM_PLUGINS=knn_logits` turns it on."""

    name = "knn_logits"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._engine: Any = None

    def attach_router(self, app: Any) -> None:
        app.get("/knn/sources/{request}")(self._sources)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002
        """Keeps the engine, which has the sources."""
        self._engine = engine_client

    async def _sources(self, request: str) -> Any:
        found = (await self._engine.collective_rpc("knn_sources", args=(request,)))[0]
        if not found:
            raise HTTPException(404, "no sources of this id: it is unknown, or had no memory")
        return {"id": request, "texts": found}
