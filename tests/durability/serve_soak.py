"""A server under everything that clients may do wrong, for as long as one likes.

    python tests/durability/serve_soak.py MODEL STORE [--requests 10000]

Starts `knn-logits serve`, sends malformed requests, cuts clients off in each phase, fills the line
with 200 clients, and compares what several clients at once get with what one gets alone. Any causal
model serves. Prints one JSON object: answers by status, tracebacks in the server's output, and its
memory on the way. Ends with 1 if an answer, a text or the log was not what it has to be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import struct
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
from serve.malformed import Model, malformed

CLIENTS = 16
# Where a client leaves: before a byte, in the head, in the body, while it waits, in the head of the
# answer, and after its first words. In the last phase it resets the connection.
PHASES = ("connected", "head", "body", "asked", "head of the answer", "words", "reset")


def read(folder):
    """What requests have to know of a model: its tokens, and how many it reads."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).get_text_config()
    context = getattr(config, "max_position_embeddings", None) or 2**20
    return Model("tiny+texts", config.vocab_size, context)


def is_one_line(answer):
    """Whether an answer is a refusal of one line, in OpenAI's form."""
    if not (400 <= answer.status_code < 500 or answer.status_code == 503):
        return False
    if len(answer.text.splitlines()) != 1:
        return False
    message = answer.json()["error"]["message"]
    return bool(message) and "\n" not in message and "Traceback" not in message


def refusals(url, number, seed, model):
    """Malformed requests, and what they are answered with."""
    picked, found, wrong = random.Random(seed), Counter(), []
    with httpx.Client(base_url=url, timeout=120) as client:
        for _ in range(number):
            path, headers, body = malformed(picked, model)
            answer = client.post(path, headers=headers, content=body)
            found[answer.status_code] += 1
            if not is_one_line(answer):
                wrong.append((answer.status_code, answer.text[:200], body[:200].decode("latin-1")))
    return found, wrong


def cut_off(port, number, body):
    """Clients that leave in each phase of a request, of completions and of chats in turn."""
    left = Counter()
    for place in range(number):
        phase = PHASES[place % len(PHASES)]
        asked, path = {**body, "stream": True, "max_tokens": 100}, b"/v1/completions"
        if place // len(PHASES) % 2:
            path = b"/v1/chat/completions"
            asked["messages"] = [{"role": "user", "content": asked.pop("prompt")}]
        content = json.dumps(asked).encode()
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        whole = head % (path, len(content)) + content
        sent = {"connected": 0, "head": 30, "body": len(whole) - 9}.get(phase, len(whole))
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.settimeout(60)
            line.sendall(whole[:sent])
            if phase == "head of the answer":
                line.recv(64)
            elif phase in ("words", "reset"):
                answer = b""
                while b"data: " not in answer:
                    part = line.recv(4096)
                    assert part, answer
                    answer += part
            if phase == "reset":
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left[phase] += 1
    return left


def crowd(url, number, body):
    """So many clients at once: texts by what was asked, and statuses."""

    def ask(place):
        asked = {**body, "seed": place % 4, "temperature": 1.0, "max_tokens": 12}
        answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=600)
        text = answer.json()["choices"][0]["text"] if answer.status_code == 200 else None
        refused = is_one_line(answer) and bool(answer.headers.get("retry-after"))
        return answer.status_code, place % 4, text, text is not None or refused

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(ask, range(number)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--cut-off", type=int, default=210)
    options = parser.parse_args()
    model = read(options.model)
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "knn_logits", "serve", options.model]
        command += [f"texts={options.store}", "--port", "0", "--model-name", "tiny"]
        command += ["--max-new-tokens", "128"]
        # The path of the checkout's own folders, for a checkout that is not installed.
        root = Path(__file__).parents[2]
        paths = [str(root), str(root / "app"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths).rstrip(os.pathsep)}
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
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
            found, bad = refusals(url, options.requests // rounds, number, model)
            statuses += found
            wrong += bad
            weigh()
            print(f"{sum(statuses.values()):,} refused, {memory[-1]} MB", file=sys.stderr)
        left = cut_off(port, options.cut_off, body)
        end = time.monotonic() + 120
        while httpx.get(f"{url}/health").json() != {"status": "ok", "running": 0, "waiting": 0}:
            assert time.monotonic() < end, "requests of clients that left still run"
            time.sleep(0.1)
        weigh()
        mixed, many = 0, Counter()
        for number in (CLIENTS, CLIENTS, 200):
            for status, seed, text, fine in crowd(url, number, body):
                many[status] += 1
                mixed += status == 200 and text != alone[seed]
                wrong += [] if fine else [(status, "in a crowd", "")]
            weigh()
        server.terminate()
        code = server.wait(60)
        log.seek(0)
        lines = log.read().splitlines()
    tracebacks = sum("Traceback" in line for line in lines)
    print(
        json.dumps(
            {
                "malformed": dict(statuses),
                "left": dict(left),
                "crowds": dict(many),
                "mixed": mixed,
                "wrong": len(wrong),
                "first_wrong": wrong[:3],
                "lines_of_log": len(lines),
                "tracebacks": tracebacks,
                "first_lines": lines[:5],
                "megabytes": memory,
                "exit": code,
            }
        )
    )
    # The server passes the signal on once it has ended, as programs are expected to.
    fine = not wrong and not mixed and not tracebacks and code in (0, -signal.SIGTERM)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
