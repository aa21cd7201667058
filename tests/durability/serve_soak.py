"""A server under everything that clients may do wrong, for as long as one likes.

    python tests/durability/serve_soak.py MODEL STORE [--requests 10000]

Starts `knn-logits serve`, sends malformed requests, cuts clients off in each phase, fills the line
with 200 clients, and compares what several clients at once get with what one gets alone. Prints one
JSON object: answers by status, tracebacks in the server's output, and its memory on the way.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from serve.malformed import malformed

CLIENTS = 16


def refusals(url, number, seed):
    """Malformed requests, and what they are answered with."""
    picked, found, wrong = random.Random(seed), Counter(), []
    with httpx.Client(base_url=url, timeout=120) as client:
        for _ in range(number):
            path, headers, body = malformed(picked)
            answer = client.post(path, headers=headers, content=body)
            found[answer.status_code] += 1
            lines = answer.text.splitlines()
            fine = 400 <= answer.status_code < 500 or answer.status_code == 503
            if not fine or len(lines) != 1 or "error" not in answer.json():
                wrong.append((answer.status_code, answer.text[:200], body[:200].decode("latin-1")))
    return found, wrong


def cut_off(port, number, body):
    """Clients that leave: before, in, and after their request, and in the middle of the answer."""
    content = json.dumps({**body, "stream": True, "max_tokens": 100}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    whole = head % len(content) + content
    for place in range(number):
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.settimeout(30)
            part = place % 5
            line.sendall(whole[: (0, 30, len(whole) - 9, len(whole), len(whole))[part]])
            if part == 4:
                line.recv(64)


def crowd(url, number, body):
    """So many clients at once: texts by what was asked, and statuses."""

    def ask(place):
        asked = {**body, "seed": place % 4, "temperature": 1.0, "max_tokens": 12}
        answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=600)
        content = answer.json()
        text = content["choices"][0]["text"] if answer.status_code == 200 else None
        return answer.status_code, place % 4, text, answer.headers.get("retry-after")

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(ask, range(number)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--cut-off", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "knn_logits", "serve", options.model]
        command += [f"texts={options.store}", "--port", "0", "--model-name", "tiny"]
        command += ["--max-new-tokens", "128"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        url = server.stdout.readline().split(": ", 1)[1].strip().removesuffix("/v1")
        port, process = int(url.rpartition(":")[2]), psutil.Process(server.pid)
        body = {"model": "tiny+texts", "prompt": "When error code", "max_tokens": 12}
        memory, statuses, wrong = [], Counter(), []

        def weigh():
            memory.append(round(process.memory_info().rss / 1e6))

        alone = {}
        for seed in range(4):
            asked = {**body, "seed": seed, "temperature": 1.0}
            answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=600)
            alone[seed] = answer.json()["choices"][0]["text"]
        weigh()
        rounds = 10
        for number in range(rounds):
            found, bad = refusals(url, options.requests // rounds, number)
            statuses += found
            wrong += bad
            weigh()
            print(f"{sum(statuses.values()):,} refused, {memory[-1]} MB", file=sys.stderr)
        cut_off(port, options.cut_off, body)
        end = time.monotonic() + 120
        while httpx.get(f"{url}/health").json() != {"status": "ok", "running": 0, "waiting": 0}:
            assert time.monotonic() < end, "requests of clients that left still run"
            time.sleep(0.1)
        weigh()
        mixed, many = 0, Counter()
        for number in (CLIENTS, CLIENTS, 200):
            for status, seed, text, after in crowd(url, number, body):
                many[status] += 1
                mixed += status == 200 and text != alone[seed]
                wrong += [("no Retry-After", "", "")] if status == 503 and not after else []
            weigh()
        server.terminate()
        code = server.wait(60)
        log.seek(0)
        lines = log.read().splitlines()
    print(
        json.dumps(
            {
                "malformed": dict(statuses),
                "crowds": dict(many),
                "mixed": mixed,
                "wrong": len(wrong),
                "first_wrong": wrong[:3],
                "lines_of_log": len(lines),
                "tracebacks": sum("Traceback" in line for line in lines),
                "first_lines": lines[:5],
                "megabytes": memory,
                "exit": code,
            }
        )
    )
    return 1 if wrong or mixed else 0


if __name__ == "__main__":
    sys.exit(main())
