"""Tokens a second through `knn-logits serve`, beside the library in this process.

python benchmarks/serving.py MODEL STORE TEXT

Prompts are beginnings of the documents of a text that the datastore does not hold. One client asks
the server for all of them in turn, and then several clients at once. The library writes the same
prompts with drafts one by one, and without drafts in batches. Server, clients and library are three
processes that take turns. Each answer of the server has its sources, so the library traces each
text as well. What it takes without the traces is recorded beside it. Seconds of the processor, of
the server without its clients, say more than seconds of the clock where the machine is busy.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import psutil
import torch
from common import first_documents, load, record, summary

import knn_logits

WAIT_SECONDS = 120


class Server:
    """`knn-logits serve` in a process of its own, on a free port, and its clients in another."""

    def __init__(self, model, store, tokens, folder, dtype="auto"):
        self._errors = (Path(folder) / "serve.log").open("w+")
        command = [sys.executable, "-m", "knn_logits", "serve", model, store, "--port", "0"]
        command += ["--dtype", dtype]
        self._process = subprocess.Popen(command, stdout=self._errors, stderr=subprocess.STDOUT)
        url = self._address()
        models = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]
        self.name = next(one["id"] for one in models if "+" in one["id"])
        self._clients = subprocess.Popen(
            [sys.executable, *(__file__, "--clients-of", url, self.name, str(tokens))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

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

    def write(self, prompts, clients):
        """Returns the seconds, those of the processor, and the tokens of the answers."""
        before = self._processor_seconds()
        self._clients.stdin.write(json.dumps({"prompts": prompts, "clients": clients}) + "\n")
        self._clients.stdin.flush()
        found = json.loads(self._clients.stdout.readline())
        return found["seconds"], self._processor_seconds() - before, found["tokens"]

    def _processor_seconds(self):
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def close(self):
        self._clients.stdin.close()
        self._clients.wait(30)
        self._process.terminate()
        self._process.wait(30)


def in_turn(ways, rounds):
    """Takes several ways in turn, after one round that does not count.

    Returns:
        By the name of each way, its tokens, its tokens a second and its times.
    """
    seconds, processor, tokens = {name: [] for name in ways}, {name: [] for name in ways}, {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            took, of_processor, tokens[name] = way()
            if number:
                seconds[name].append(took)
                processor[name].append(of_processor)
    return {
        name: {
            "tokens": tokens[name],
            "tokens_per_second": tokens[name] / summary(took)["median"],
            **summary(took),
            "processor_seconds": summary(processor[name])["median"],
        }
        for name, took in seconds.items()
    }


def write_one(client, model, tokens, prompt):
    """Returns how many tokens the server wrote after a prompt."""
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    answer = client.post("/v1/completions", json=asked)
    answer.raise_for_status()
    return answer.json()["usage"]["completion_tokens"]


def clients(url, model, tokens):
    """The clients, in a process of their own, so that they take no time of the server.

    Reads lines of JSON, each with the prompts to send and how many clients send them at once, and
    prints for each line the seconds until the last answer and the number of tokens of all answers.
    """
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        ask = partial(write_one, client, model, tokens)
        for line in sys.stdin:
            asked = json.loads(line)
            with ThreadPoolExecutor(asked["clients"]) as threads:
                started = time.perf_counter()
                written = sum(threads.map(ask, asked["prompts"]))
                seconds = time.perf_counter() - started
            print(json.dumps({"seconds": seconds, "tokens": written}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
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
    every = (prompts * args.clients)[: args.clients]
    settings = {
        "max_new_tokens": args.tokens,
        "do_sample": False,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        knn_logits.KNNLogitsProcessor(model, store, threads=1) as knn,
    ):

        def library(batches, *, traced):
            written, started, before = 0, time.perf_counter(), time.process_time()
            for batch in batches:
                inputs = tokenizer(batch, return_tensors="pt", padding=True)
                output = knn.generate(**inputs, **settings)
                new = output[:, inputs["input_ids"].shape[1] :]
                written += int((new != tokenizer.pad_token_id).sum())
                if traced:
                    knn.trace(output, tokenizer)
            return time.perf_counter() - started, time.process_time() - before, written

        singles = [[one] for one in prompts]
        server = Server(args.model, args.store, args.tokens, folder)
        result = {"server": server.name}
        result |= in_turn(
            {
                "serve": lambda: server.write(prompts, 1),
                "library": lambda: library(singles, traced=True),
                "library without traces": lambda: library(singles, traced=False),
            },
            args.rounds,
        )
        result |= in_turn(
            {
                "serve at once": lambda: server.write(every, args.clients),
                "library in a batch": lambda: library([every], traced=True),
                "library in a batch without traces": lambda: library([every], traced=False),
            },
            args.rounds,
        )
        server.close()
    for one, other in (("serve", "library"), ("serve at once", "library in a batch")):
        speeds = [result[name]["tokens_per_second"] for name in (one, other)]
        processor = [result[name]["processor_seconds"] for name in (other, one)]
        result[f"{one} / {other}"] = speeds[0] / speeds[1]
        result[f"{one} / {other}, by processor seconds"] = processor[0] / processor[1]
    record("serving", vars(args), result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--clients-of"]:
        clients(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
