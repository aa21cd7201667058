"""`knn-logits app` and `knn-logits serve`: the page and the server, packages of their own."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knn_logits.cli.loading import ModelRun, open_datastore
from knn_logits.cli.memory import ServedMemoryOptions
from knn_logits.cli.options import STORE_HELP, Model, Stores, argument, command
from knn_logits.cli.terminal import doing, say, tell
from knn_logits.errors import ConfigError, MissingDependencyError
from knn_logits.settings.declaration import setting

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens, and whom it answers."""

    host: str = setting(
        "127.0.0.1", "Address to bind to; by default, only this machine can connect."
    )
    port: int = setting(8000, "Port; 0 chooses a free one.", least=0, most=65535)
    key: Annotated[
        str | None,
        typer.Option(
            "--api-key", envvar="KNN_LOGITS_API_KEY", help="API key that clients must send."
        ),
    ] = None
    names: tuple[str, ...] = setting(
        (),
        "Host name by which clients reach the server, such as knn.example.org; repeatable.",
        option="--name",
    )


@command
def serve(
    model: Model,
    server: ServerOptions,
    memory: ServedMemoryOptions,
    run: ModelRun,
    stores: list[str] = argument(
        "[NAME=]STORE...", f"{STORE_HELP} Clients select one alone as model MODEL+NAME."
    ),
    ask: bool = setting(
        True,
        "Answer chats from the documents if the model has a chat template. A request's `ask` "
        "overrides this.",
        option="--ask/--no-ask",
    ),
) -> None:
    """Serve an OpenAI-compatible API, with the source of every word."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "knn_logits_serve")):
        raise MissingDependencyError('the server needs Starlette: pip install "knn-logits[serve]"')
    from knn_logits_serve.served import Served
    from knn_logits_serve.server import Settings
    from knn_logits_serve.server import serve as start

    limits = Settings(**vars(server))
    datastores = _opened(stores)
    opened = memory.over(list(datastores.values()))
    loaded, tokenizer = run.load(model, opened.stores[0].folder)
    with opened.searching():
        doing("checking the datastore")
        settings = opened.keywords()
        del settings["threads"]  # the server has its own number
        engine = Served(_name_of(model), loaded, tokenizer, datastores, **settings)
        engine.asks = ask and not engine.chat.plain
        if engine.chat.plain:
            tell("the tokenizer has no chat template, so chats are continued as plain text")
        if server.key is None and server.host not in _THIS_MACHINE:
            tell(
                "anyone who can reach this machine can send requests: set --api-key to restrict "
                "access"
            )

        def ready(address: str) -> None:
            say(f"serving {', '.join(engine.names)} (Ctrl-C stops): {address}/v1")

        start(engine, limits, on_ready=ready)


def _name_of(model: str) -> str:
    """A model's name for those who ask for it: of a folder or a file, its own without the path."""
    if not Path(model).exists():
        return model
    return Path(model).resolve().name.removesuffix(".gguf")


def _opened(arguments: list[str]) -> dict[str, Datastore]:
    """Opens the datastores, by the names that clients use."""
    opened: dict[str, Datastore] = {}
    for text in arguments:
        name, sign, place = text.partition("=")
        if not sign or Path(text).exists():
            name, place = "", text
        store = open_datastore(place)
        name = name or store.name
        if name in opened:
            raise ConfigError(
                f"two datastores are named {name!r}: rename one, as in {name}-2={place}"
            )
        opened[name] = store
    return opened


@command
def page(
    model: Model,
    stores: Stores,
    run: ModelRun,
    host: str | None = setting(
        None, "Address to bind to; by default, only this machine can connect."
    ),
    port: int | None = setting(None, "Port; defaults to the first free port from 7860."),
) -> None:
    """Open the web page: chat, generate, and inspect sources."""
    if find_spec("gradio") is None or find_spec("knn_logits_app") is None:
        raise MissingDependencyError(
            'the page needs gradio: pip install "knn-logits[app]" (or run `make app` in a checkout)'
        )
    datastores = [open_datastore(name) for name in stores]
    loaded, tokenizer = run.load(model, datastores[0].folder)
    doing("starting the page")
    from knn_logits_app.library import Library
    from knn_logits_app.server import launch

    library = Library.of(_name_of(model), loaded, tokenizer, datastores)
    try:
        launch(
            library,
            host=host,
            port=port,
            on_ready=lambda url: say(f"the page (Ctrl-C closes it): {url}"),
        )
    except OSError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"the page cannot listen on this address ({reason}); choose another --port or --host"
        ) from error
