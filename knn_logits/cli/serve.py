"""`knn-logits serve MODEL STORE...`: a server with OpenAI's interface.

The server is a package of its own, `knn_logits_serve`, which uses the public names of this one
only. Nothing but this command imports it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, open_datastore, prepare
from knn_logits.cli.machines import searching, spread_indexes
from knn_logits.cli.mixture import mixture_settings
from knn_logits.cli.terminal import interruptible, say, tell
from knn_logits.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore


def serve(
    model: options.Model,
    stores: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]STORE...",
            help=f"{options.STORE_HELP} Clients ask for one of several as the model MODEL+NAME.",
        ),
    ],
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on. By default only this machine can ask."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", envvar="KNN_LOGITS_API_KEY", help="Key that clients have to send."
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="Host name under which clients reach the server, such as knn.example.org; may be "
            "repeated.",
        ),
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model-name", help="Name of the model for clients.")
    ] = None,
    at_once: Annotated[
        int,
        typer.Option("--at-once", min=1, max=64, help="Number of groups answered at once."),
    ] = 2,
    together: Annotated[
        int,
        typer.Option(
            "--together",
            min=1,
            max=256,
            help="The most requests that are written in one batch, if their settings agree; 1 "
            "writes each alone.",
        ),
    ] = 8,
    waiting: Annotated[
        int,
        typer.Option("--waiting", min=0, help="Number of requests that may wait; more get 503."),
    ] = 64,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Seconds that one request may run.")
    ] = 300.0,
    chat_tokens: Annotated[
        int,
        typer.Option(
            "--chat-tokens",
            min=1,
            help="The most tokens of a chat's answer if the client names none.",
        ),
    ] = 256,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="The most tokens of any answer.")
    ] = 4096,
    chat_template: Annotated[
        Path | None,
        typer.Option("--chat-template", help="File with a chat template in Jinja's language."),
    ] = None,
    preset: options.PresetOption = None,
    k: options.K = None,
    lmbda: options.Lmbda = None,
    gate: options.Gate = None,
    temperature: options.Temperature = None,
    suffix_weight: options.SuffixWeight = None,
    weights: options.Weights = None,
    native_index: options.NativeIndex = False,
    ray: options.Ray = None,
    shards: options.Shards = None,
    replicas: options.Replicas = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Serve OpenAI's interface: completions and chats, with the source of every word."""
    needed = ("fastapi", "uvicorn", "knn_logits_serve")
    if any(find_spec(name) is None for name in needed):
        raise MissingDependencyError('the server needs FastAPI: pip install "knn-logits[serve]"')
    template = _read(chat_template)
    # A client could not see that an answer is partial, so this command has no --partial.
    indexes = spread_indexes(ray, shards, replicas)
    datastores = _opened(stores)
    mixture = mixture_settings(locals(), list(datastores.values()), scoring=False)
    prepare(None)
    loaded, tokenizer = load_model(model, device, dtype)
    from knn_logits_serve import Served, Settings
    from knn_logits_serve import serve as run
    from knn_logits_serve.chat import PLAIN_LINE

    name = model_name or (Path(model).resolve().name if Path(model).is_dir() else model)
    with searching(indexes, list(datastores.values())):
        served = Served(
            name,
            loaded,
            tokenizer,
            datastores,
            chat_template=template,
            chat_tokens=chat_tokens,
            new_tokens=max_new_tokens,
            native_index=native_index,
            indexes=indexes,
            **mixture,
        )
        if served.chat.plain and not served.reads_sources:
            tell(PLAIN_LINE)
        if api_key is None and host not in ("127.0.0.1", "localhost", "::1"):
            tell("everybody who can reach this machine can ask: give --api-key to change that")

        def ready(address: str) -> None:
            say(f"{', '.join(served.names)}: {address}/v1")

        settings = Settings(
            host=host,
            port=port,
            key=api_key,
            names=tuple(names or ()),
            at_once=at_once,
            together=together,
            waiting=waiting,
            seconds=seconds,
        )
        with interruptible("the server has ended"):
            run(served, settings, on_ready=ready)


def _opened(given: list[str]) -> dict[str, Datastore]:
    """Opens the datastores, by the names that clients use."""
    found: dict[str, Datastore] = {}
    for one in given:
        name, sign, place = one.partition("=")
        if not sign or Path(one).exists():
            name, place = "", one
        store = open_datastore(place)
        name = name or store.name
        if name in found:
            raise ConfigError(
                f"two datastores have the name {name!r}: give one another, {name}-2={place}"
            )
        found[name] = store
    return found


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--chat-template {path} cannot be read: give a text file") from error
