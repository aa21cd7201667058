"""Opens a model by its name, with the engine that runs it. A further engine is a line here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from knn_logits.errors import ConfigError, ModelError

TRANSFORMERS = "transformers"
SUFFIX = ".gguf"


def rounds_by_pass(model: object) -> bool:
    """Whether a pass over several tokens rounds otherwise than passes over one."""
    dtype = getattr(model, "dtype", None)
    half = isinstance(dtype, torch.dtype) and dtype.itemsize < 4
    return half or bool(getattr(model, "rounds_by_pass", False))


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
    from knn_logits.engine.llama_cpp.model import GGUFModel

    model = GGUFModel(path)
    return model, model.tokenizer


def _fetched(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    organisation, repository, file = [*name.split("/", 2), "", ""][:3]
    if not file:
        raise ModelError(f"there is no file {name}: pass an existing GGUF file")
    try:
        return Path(hf_hub_download(f"{organisation}/{repository}", file))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"there is no file {name}, and it is not available from the Hub ({reason}): pass an "
            "existing GGUF file"
        ) from error
