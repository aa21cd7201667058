"""Tokens a second through `knn-logits serve`, beside the library in this process.

python benchmarks/serving.py MODEL STORE TEXT

Prompts are beginnings of the documents of a text that the datastore does not hold. One client asks
the server for one after another, and then so many clients ask at once. The library writes the same
prompts with drafts one by one, and without drafts in batches. Each pair is timed in turn.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import torch
from common import alternate, first_documents, load, record, summary

import knn_logits

WAIT_SECONDS = 120


class Server:
    """`knn-logits serve` in a process of its own, on a free port."""

    def __init__(self, model, store, at_once, folder):
        self._errors = (Path(folder) / "serve.log").open("w+")
        command = [sys.executable, "-m", "knn_logits", "serve", model, store, "--port", "0"]
        command += ["--at-once", str(at_once)]
        self._process = subprocess.Popen(command, stdout=self._errors, stderr=subprocess.STDOUT)
        self.url = self._address()
        self.client = httpx.Client(base_url=self.url, timeout=600, trust_env=False)

    def _address(self):
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            lines = Path(self._errors.name).read_text().split()
            found = [one for one in lines if one.startswith("http://127.0.0.1:")]
            if found:
                return "/".join(found[0].split("/")[:3]).rstrip(".,")
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        raise SystemExit(f"the server did not start: {Path(self._errors.name).read_text()}")

    def write(self, name, prompt, tokens):
        """Returns how many tokens the server wrote after a prompt."""
        asked = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        answer = self.client.post("/v1/completions", json=asked)
        answer.raise_for_status()
        return answer.json()["usage"]["completion_tokens"]

    def close(self):
        self._process.terminate()
        self._process.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    model, tokenizer = load(args.model)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    store = knn_logits.Datastore(args.store)
    documents = first_documents(args.text, tokenizer, 10**9)[: args.prompts]
    prompts = [
        tokenizer.decode(tokenizer(one.text, verbose=False)["input_ids"][: args.prompt_tokens])
        for one in documents
    ]
    counts = {}
    settings = {
        "max_new_tokens": args.tokens,
        "do_sample": False,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        knn_logits.KNNLogitsProcessor(model, store, threads=1) as knn,
    ):
        server = Server(args.model, args.store, args.at_once, folder)
        models = [one["id"] for one in server.client.get("/v1/models").json()["data"]]
        name = next(one for one in models if "+" in one)

        def count(way, numbers):
            counts[way] = sum(numbers)

        def served_one_by_one():
            count("serve", [server.write(name, one, args.tokens) for one in prompts])

        def library_one_by_one():
            written = []
            for one in prompts:
                inputs = tokenizer(one, return_tensors="pt")
                output = knn.generate(**inputs, **settings)
                written.append(output.shape[1] - inputs["input_ids"].shape[1])
                knn.trace(output, tokenizer)
            count("library", written)

        def served_at_once():
            start = threading.Barrier(args.clients)

            def ask(prompt):
                start.wait()
                return server.write(name, prompt, args.tokens)

            with ThreadPoolExecutor(args.clients) as clients:
                every = (prompts * args.clients)[: args.clients]
                count("serve at once", list(clients.map(ask, every)))

        def library_in_batches():
            every = (prompts * args.clients)[: args.clients]
            inputs = tokenizer(every, return_tensors="pt", padding=True)
            output = knn.generate(**inputs, **settings)
            new = output[:, inputs["input_ids"].shape[1] :]
            count("library in a batch", [int((row != tokenizer.pad_token_id).sum()) for row in new])
            knn.trace(output, tokenizer)

        result = {"server": name}
        for served, library in (
            (served_one_by_one, library_one_by_one),
            (served_at_once, library_in_batches),
        ):
            seconds = alternate(served, library, args.rounds)
            names = [key for key in counts if key not in result]
            for key, took in zip(names, seconds, strict=True):
                speed = counts[key] / summary(took)["median"]
                result[key] = {"tokens": counts[key], "tokens_per_second": speed, **summary(took)}
            mine, theirs = (result[key]["tokens_per_second"] for key in names)
            result[f"{names[0]} / {names[1]}"] = mine / theirs
        server.close()
    record("serving", vars(args), result)


if __name__ == "__main__":
    main()
