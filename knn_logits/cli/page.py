"""`knn-logits app MODEL STORE...`: the page in a browser.

The page is a package of its own, `knn_logits_app`, which uses the public names of this one only.
Nothing but this command imports it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from knn_logits.cli.loading import ModelRun, open_datastore
from knn_logits.cli.options import Model, Stores, command
from knn_logits.cli.terminal import interruptible
from knn_logits.errors import ConfigError, MissingDependencyError
from knn_logits.settings.declaration import setting

_MOST_PROMPTS = 12


@command
def page(
    model: Model,
    stores: Stores,
    run: ModelRun,
    host: str | None = setting(None, "Address to listen on. By default only this machine can ask."),
    port: int | None = setting(None, "Port; by default the first free one from 7860."),
    at_once: int = setting(2, "Visitors answered at the same time; others wait.", least=1),
    examples: str | None = setting(None, "Prompts to begin with, one a line."),
) -> None:
    """Show a page: write, and click a word to see its source."""
    if find_spec("gradio") is None or find_spec("knn_logits_app") is None:
        raise MissingDependencyError(
            'the page needs gradio: pip install "knn-logits[app]" (or run `make app` in a checkout)'
        )
    prompts = _prompts(Path(examples)) if examples is not None else []
    datastores = [open_datastore(store) for store in stores]
    loaded, tokenizer = run.load(model)
    from knn_logits_app import Library, launch

    name = Path(model).name if Path(model).is_dir() else model
    library = Library.of(name, loaded, tokenizer, datastores, prompts)
    with interruptible("the page is closed"):
        try:
            launch([library], host=host, port=port, at_once=at_once)
        except OSError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"the page cannot listen on this address ({reason}); give another --port or --host"
            ) from error


def _prompts(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text in UTF-8"
        raise ConfigError(f"{file} cannot be read: {reason}") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts or len(prompts) > _MOST_PROMPTS:
        raise ConfigError(
            f"{file} has {len(prompts)} lines of text: give 1 to {_MOST_PROMPTS} prompts, one each"
        )
    return prompts
