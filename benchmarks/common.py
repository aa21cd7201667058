"""Helpers of the benchmarks: they load a model, time two things fairly, and record a result."""

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
# It is read before the measurement, during which somebody may commit.
COMMIT = subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
).stdout.strip()


def add_model_options(parser):
    """Adds the options of the model: its name or folder, its precision and its device."""
    parser.add_argument("model")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu", help="for example cuda")


def load(name, dtype="float32", device="cpu"):
    """Loads a model and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype)).eval()
    return model.to(device), AutoTokenizer.from_pretrained(name)


def clock_of(device):
    """Returns a clock of this process' CPU seconds, or on a GPU of the wall, when it is idle."""
    if torch.device(device).type != "cuda":
        return time.process_time

    def wall():
        torch.cuda.synchronize()
        return time.perf_counter()

    return wall


def first_documents(corpus, tokenizer, entries):
    """Returns the first documents of a corpus, which have about so many entries together."""
    documents, tokens = [], 0
    for document in knn_logits.read_corpus([corpus]):
        ids = tokenizer(document.text, verbose=False)["input_ids"]
        if tokens + len(ids) > entries and documents:
            break
        documents.append(document)
        tokens += len(ids)
    return documents


class Clock:
    """Measures CPU seconds from the first to the last progress, without opening the datastore."""

    def __init__(self):
        self.first = self.last = None

    def __call__(self, *_):
        self.last = time.process_time()
        self.first = self.first if self.first is not None else self.last

    @property
    def seconds(self):
        return self.last - self.first


def alternate(one, other, rounds, clock=time.perf_counter):
    """Times two functions in turn, so that a slow moment of the machine affects both.

    Args:
        one: The first function.
        other: The second function.
        rounds: How often each is timed, after one call that is not timed.
        clock: `time.process_time` for functions of one thread on a busy machine.

    Returns:
        The seconds of each round of the first function, and of the second.
    """
    one()
    other()
    seconds = ([], [])
    for _ in range(rounds):
        for place, what in enumerate((one, other)):
            started = clock()
            what()
            seconds[place].append(clock() - started)
    return seconds


def summary(seconds):
    """Returns the median and the fastest of several rounds, in seconds."""
    return {"median": statistics.median(seconds), "fastest": min(seconds), "rounds": len(seconds)}


def record(name, settings, result):
    """Prints a result, and writes it into a file with its settings, the machine and the commit."""
    content = {
        "benchmark": name,
        "commit": COMMIT,
        "machine": {
            "processor": _processor(),
            "system": platform.system(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        # Paths differ between machines, so only the last name of a path is kept.
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
