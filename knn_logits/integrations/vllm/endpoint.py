"""The entry point of `vllm.endpoint_plugins`: `GET /knn/sources/{id}`."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException


class SourcesEndpoint:
    """Serves the sources of an answer by its id. `VLLM_PLUGINS=knn_logits` turns it on."""

    name = "knn_logits"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._engine: Any = None

    def attach_router(self, app: Any) -> None:
        """Adds the route."""
        app.get("/knn/sources/{request}")(self._sources)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002
        """Keeps the engine, which has the sources."""
        self._engine = engine_client

    async def _sources(self, request: str) -> Any:
        found = (await self._engine.collective_rpc("knn_sources", args=(request,)))[0]
        if not found:
            raise HTTPException(404, "no sources of this id: it is unknown, or had no memory")
        return {"id": request, "texts": found}
