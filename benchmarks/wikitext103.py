"""WikiText-103 as knn-transformers measures it: build, cluster, evaluate, and the table.

    python benchmarks/wikitext103.py neulab/gpt2-finetuned-wikitext103 --work wt103 --device cuda

Each step is a command of `knn-logits`, which is printed. A run that was ended goes on where it was
when it is started again. `benchmarks/wikitext103.md` has the sizes, the hours, and smaller runs.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

DATA = "hf:Salesforce/wikitext:wikitext-103-raw-v1"
# Perplexities in the README of neulab/knn-transformers.
PUBLISHED = {
    "neulab/distilgpt2-finetuned-wikitext103": (18.25, 15.03, 14.71),
    "neulab/gpt2-finetuned-wikitext103": (14.84, 12.57, 12.44),
    "neulab/gpt2-med-finetuned-wikitext103": (11.55, 10.59, 10.59),
}


def run(*words):
    """Runs a command of knn-logits, and returns what it prints as JSON, if it does."""
    words = [*map(str, words), *["--json"] * (words[0] != "index")]
    print(f"$ knn-logits {shlex.join(words)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "knn_logits", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"the step failed: start again to go on ({done.returncode})")
    return json.loads(done.stdout.splitlines()[-1]) if "--json" in words else {}


def once(path, *words):
    """Runs a command unless its result is there."""
    if not path.exists():
        path.write_text(json.dumps(run(*words)) + "\n", "utf-8")
    return json.loads(path.read_text("utf-8"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model of neulab that was fine-tuned, or any other")
    parser.add_argument("--work", type=Path, required=True, help="folder of the datastore")
    parser.add_argument(
        "--train", nargs="+", default=[f"{DATA}:train"], help="the datastore's text"
    )
    parser.add_argument("--text", default=f"{DATA}:validation", help="the text to evaluate")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--stride", type=int, default=512)
    parser.add_argument("--index", default="IVF4096,PQ64")
    parser.add_argument("--nprobe", type=int, default=32)
    parser.add_argument("--clusters", type=int, default=500_000, help="of RetoMaton; 0 for none")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--lmbda", type=float, default=0.25)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--estimate", action="store_true", help="only print size and time")
    given = parser.parse_args()
    model, work, device = given.model, given.work, ("--device", given.device)
    store = work / "store"
    how = ["--concatenate", "--window", given.window, "--stride", given.stride, "--index"]
    build = ["build", model, *given.train, *how, given.index, "--nprobe", given.nprobe]
    if given.estimate:
        print(json.dumps(run(*build, "--dry-run", *device), indent=2))
        return
    work.mkdir(parents=True, exist_ok=True)
    once(work / "build.json", *build, "--no-calibrate", "--out", store, *device)
    if given.clusters:
        once(work / "clusters.json", "index", store, "--clusters", given.clusters)
    asked = ["eval", model, store, given.text, "--preset", "paper", "--k", 1024, *device]
    asked += ["--lmbda", given.lmbda, "--temperature", given.temperature]
    asked += ["--cache", work / "passes"]
    tokens = work / "knn.parquet"
    knn = once(work / "knn.json", *asked, "--per-token", tokens)
    retomaton = once(work / "retomaton.json", *asked, "--retomaton", "--against", tokens)
    rows = [
        ("base perplexity", knn["perplexity"]["lm"]),
        ("kNN-LM", knn["perplexity"]["interpolated"]),
        ("RetoMaton", retomaton["perplexity"]["interpolated"]),
    ]
    published = PUBLISHED.get(model, (None,) * 3)
    print(f"\n| {model}, {knn['tokens']:,} tokens | knn-transformers | knn-logits |\n|---|---|---|")
    for (name, value), theirs in zip(rows, published, strict=True):
        print(f"| {name} | {theirs or '-'} | {value:.2f} |")
    saved = retomaton["searches_saved"] / retomaton["tokens"]
    low, high = retomaton["against"]["interval"] or (float("nan"),) * 2
    print(
        f"\nRetoMaton saved {saved:.0%} of the searches; its perplexity differs from kNN-LM's "
        f"by {low - 1:+.1%} to {high - 1:+.1%} (95%, paired bootstrap)."
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("ended: start again to go on")
