"""Opens a model by its name, with the engine that runs it. A further engine is a line here."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

from knn_logits.errors import ConfigError, MissingDependencyError, ModelError

logger = logging.getLogger(__name__)

SUFFIX = ".gguf"


def gguf_file(name: str) -> Path | None:
    """The GGUF file of a name: a file, a folder with one, or ORG/NAME/FILE.gguf; or None."""
    path = Path(name)
    if path.is_dir():
        files = sorted(path.glob(f"*{SUFFIX}"))
        if not files or (path / "config.json").exists():
            return None
        if len(files) > 1:
            raise ConfigError(
                f"{name} contains {len(files)} GGUF files: pass a file, such as {files[0]}"
            )
        return files[0]
    if path.suffix.lower() != SUFFIX:
        return None
    return path if path.is_file() else _fetched(name)


def open_gguf(path: Path) -> tuple[Any, Any]:
    """Opens a GGUF file: model and tokenizer; without llama.cpp, transformers reads it."""
    from knn_logits.engine.llama_cpp.model import GGUFModel

    try:
        model = GGUFModel(path)
    except MissingDependencyError:
        if importlib.util.find_spec("gguf") is None:
            raise
        return _open_by_transformers(path)
    return model, model.tokenizer


def _open_by_transformers(path: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logger.warning(
        "llama.cpp is not installed, so transformers runs %s in float32, several times slower: "
        'pip install "knn-logits[gguf]"',
        path.name,
    )
    place: dict[str, Any] = {"gguf_file": path.name}
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, **place)
        model: Any = AutoModelForCausalLM.from_pretrained(path.parent, dtype="float32", **place)
    except Exception as error:  # each architecture and each damage has an error of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"transformers cannot read {path} ({reason}): install llama.cpp, "
            'pip install "knn-logits[gguf]"'
        ) from error
    return model.eval(), tokenizer


def _fetched(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    organisation, _, rest = name.partition("/")
    repository, _, file = rest.partition("/")
    if not file or not repository or organisation in ("", ".", ".."):
        raise ModelError(f"there is no file {name}: pass an existing GGUF file")
    try:
        return Path(hf_hub_download(f"{organisation}/{repository}", file))
    except (HFValidationError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"there is no file {name}, and it is not available from the Hub ({reason}): pass an "
            "existing GGUF file"
        ) from error
