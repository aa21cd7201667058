"""Starts the page with its web server and limits."""

from __future__ import annotations

import io
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from typing import Any

# This has to be set before gradio is imported, so that the server sends no analytics.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr
from gradio import route_utils
from gradio.queueing import ProcessTime
from gradio.utils import get_upload_folder
from starlette.middleware import Middleware

from knn_logits.hosting import Limits
from knn_logits_app.door import HOSTS, Door, Names
from knn_logits_app.guard import Guard
from knn_logits_app.library import Library
from knn_logits_app.page import build_page
from knn_logits_app.page_parts import Server
from knn_logits_app.session import Session
from knn_logits_app.views import ASSETS, ICON, asset, script
from knn_logits_app.visitors import Visitors, end_on_sigterm, private_folder

QUEUE = 64
# The seconds after which gradio looks for new requests. Its own 0.001 takes 7% of a core from the
# model, all the time, and 0.02 takes 1%.
_LOOK_EVERY = 0.02


def theme() -> Any:
    """Returns the page's theme. It uses fonts of the visitor's machine, and loads nothing."""
    return gr.themes.Base(
        primary_hue="green",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
        radius_size="md",
    ).set(
        block_info_text_color="#5b6670",
        block_info_text_color_dark="#a9b5c2",
        body_text_color_subdued="#5b6670",
        body_text_color_subdued_dark="#a9b5c2",
        button_primary_background_fill="#1d7a41",
        button_primary_background_fill_dark="#1d7a41",
        button_primary_background_fill_hover="#176235",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
    )


def prepare(library: Library, limits: Limits | None = None, at_once: int = 2) -> tuple[Any, Server]:
    """Builds the page without starting a web server. `launch` explains the arguments."""
    # By default gradio keeps uploads in a folder that all users share. The private folder is
    # deleted when this process ends.
    os.environ.setdefault("GRADIO_TEMP_DIR", str(private_folder() / "uploads"))
    _separate_uploads()
    if limits is None:
        context = library.context or 1024
        limits = Limits(prompt_tokens=min(512, context), new_tokens=min(256, context // 2))
    server = Server(Session(library, limits), Visitors())
    page = build_page(server)
    # `/run/` would run a request without the queue, so it is closed.
    page.queue(1, max_size=QUEUE, default_concurrency_limit=at_once, api_open=False)
    page._queue.process_time_per_fn = _NoEstimates()
    page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = _LOOK_EVERY
    return page, server


class _NoEstimates(dict[Any, ProcessTime]):
    """Keeps no times, since gradio would estimate each request by the mean of shorter ones."""

    def __missing__(self, fn: Any) -> ProcessTime:
        return ProcessTime()  # type: ignore[no-untyped-call]


def _separate_uploads() -> None:
    """Gives each upload a name of its own; gradio's is the hash of the content."""
    begin = route_utils.GradioUploadFile.__init__
    if begin.__module__ == __name__:
        return

    @wraps(begin)
    def begin_apart(self: Any, *arguments: Any, **settings: Any) -> None:
        begin(self, *arguments, **settings)
        self.sha.update(secrets.token_bytes(16))

    begin_apart.__module__ = __name__
    route_utils.GradioUploadFile.__init__ = begin_apart  # type: ignore[method-assign]


def launch(
    library: Library,
    *,
    limits: Limits | None = None,
    at_once: int = 2,
    host: str | None = None,
    port: int | None = None,
    block: bool = True,
    on_ready: Callable[[str], None] | None = None,
) -> tuple[Any, Server]:
    """Serves the page.

    Args:
        library: A model with its datastores.
        limits: The limits of every request; None takes limits that fit the model.
        at_once: The most requests that run the model at the same time. The others wait.
        host: The address to listen on; None takes GRADIO_SERVER_NAME, or this machine only.
        port: The port to listen on; None takes the first free port from 7860.
        block: Whether to wait until the server ends.
        on_ready: Called with the page's address when visitors are answered.

    Returns:
        The page, and the model and visitors that it works with.
    """
    page, server = prepare(library, limits, at_once)
    upload_bytes = server.session.limits.text_bytes
    guard = Middleware(
        Guard,
        upload_bytes=upload_bytes,
        uploads=get_upload_folder(),
        present=server.visitors.present,
        left=lambda session: was_left(page, server.visitors, session),
    )
    with redirect_stdout(io.StringIO()):
        page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            show_error=False,
            theme=theme(),
            css_paths=[ASSETS / f"{name}.css" for name in ("answer", "app", "chat")],
            head=f"<script>{script()}</script>",
            favicon_path=str(ICON),
            js=asset("ready.js"),
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            max_file_size=upload_bytes,
            ssr_mode=False,
            share=False,
            # Otherwise gradio calls its own page, and fails if a busy machine takes over 3 seconds.
            _frontend=False,
            app_kwargs={"middleware": [guard]},
        )
    # The server listens already. New connections get the application behind the door.
    page.server.config.loaded_app = Door(
        page.server.config.loaded_app,
        Names((), host),
        f"add it to {HOSTS}",
        lambda line, _: {"detail": line},
    )
    if on_ready is not None:
        on_ready(page.local_url)
    if block:
        _wait(page, server)
    return page, server


def _wait(page: Any, server: Server) -> None:
    """Waits for the end of the process, and then closes the page."""
    end_on_sigterm()
    try:
        threading.Event().wait()
    finally:
        page.close(verbose=False)
        server.visitors.close()


def was_left(page: Any, visitors: Visitors, session: str) -> bool:
    """Whether the last page of a session was closed that made a request."""
    state = page.app.state_holder.session_data.get(session)
    known = session in visitors.by_session or (state is not None and not state.is_closed)
    return known and not visitors.is_open(session)
