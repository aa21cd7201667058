"""What the benchmarks share: a model, a store, fair timing, and the record of a result."""

import json
import platform
import statistics
import subprocess
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import knn_logits

RESULTS = Path(__file__).parent / "results"


def load(name):
    """The model in float32 for timing on a CPU, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(name).eval()
    return model, AutoTokenizer.from_pretrained(name)


def first_documents(corpus, tokenizer, entries):
    """The first documents of a corpus that hold about so many entries."""
    documents, tokens = [], 0
    for document in knn_logits.read_corpus([corpus]):
        ids = tokenizer(document.text, verbose=False)["input_ids"]
        if tokens + len(ids) > entries and documents:
            break
        documents.append(document)
        tokens += len(ids)
    return documents


def alternate(one, other, rounds):
    """Times two things in turn, so that a slow moment of the machine meets both.

    Returns the seconds of each round of each.
    """
    one()
    other()
    seconds = ([], [])
    for _ in range(rounds):
        for place, what in enumerate((one, other)):
            started = time.perf_counter()
            what()
            seconds[place].append(time.perf_counter() - started)
    return seconds


def summary(seconds):
    """Median and fastest of several rounds."""
    return {"median": statistics.median(seconds), "fastest": min(seconds), "rounds": len(seconds)}


def record(name, settings, result):
    """Prints a result, and keeps it beside machine and commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    content = {
        "benchmark": name,
        "commit": commit,
        "machine": {
            "processor": _processor(),
            "system": platform.system(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        # A path says nothing on another machine; the name of what it leads to does.
        "settings": {
            name: Path(value).name if isinstance(value, str) else value
            for name, value in settings.items()
        },
        "result": result,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.processor()
