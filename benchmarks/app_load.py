"""Measures latency, errors, mixed-up answers and memory while many visitors use the page.

python benchmarks/app_load.py --visitors 32 --minutes 5

Each visitor opens a session as the page does, and asks about a fact of its own. It waits for the
answer, checks that the answer and every source are about that fact, and asks again at once. One
visitor in eight first builds a datastore from its own text, and asks that.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from common import load, record

import knn_logits

ROOT = Path(__file__).parents[1]
TINY = ROOT / "tests" / "tiny_model"
API = "/gradio_api"


def resident(pid):
    """Returns the resident memory of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Visitor:
    """One open page."""

    def __init__(self, client, config, number, fact):
        self.client, self.number, self.fact = client, number, fact
        self.session = f"visitor{number}x{random.randrange(10**8)}"
        by_inputs = {len(one["inputs"]): one["id"] for one in config["dependencies"]}
        self.write_event, self.build_event = by_inputs[14], by_inputs[8]
        # Each visitor has an address of its own, since one address gets only a part of the queue.
        self.headers = {"x-forwarded-for": f"198.51.{number // 250}.{number % 250 + 1}"}
        self.latencies, self.errors, self.mixed, self.full = [], [], 0, 0

    async def event(self, fn_index, data):
        """Joins the queue, and returns the last output, or None if the queue is full."""
        body = {"data": data, "fn_index": fn_index, "session_hash": self.session}
        answer = await self.client.post(f"{API}/queue/join", json=body, headers=self.headers)
        if answer.status_code == 503:
            self.full += 1
            await asyncio.sleep(1)
            return None
        answer.raise_for_status()
        wanted = answer.json()["event_id"]
        url = f"{API}/queue/data?session_hash={self.session}"
        async with self.client.stream("GET", url) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if message.get("event_id") == wanted and message["msg"] == "process_completed":
                    if not message["success"]:
                        raise RuntimeError(str(message["output"])[:200])
                    return message["output"]["data"][0]
        raise RuntimeError("the answer ended early")

    async def ask(self, store, prompt, expected, document):
        controls = [TINY.name, [store], 0.6, 1024, 0.03]
        data = [*controls, prompt, True, False, 40, True, False, 1, 1, 0]
        started = time.perf_counter()
        found = await self.event(self.write_event, data)
        if found is None:
            return
        self.latencies.append(time.perf_counter() - started)
        content = json.loads(found)
        if "sides" not in content:
            raise RuntimeError(content.get("message", found)[:200])
        sequence = content["sides"]["knn"]["trace"]
        rows, tokens = sequence["documents"], sequence["tokens"]
        text = "".join(token["token"] for token in tokens)
        named = [token["documents"] for token in tokens if token["documents"]]
        stores = {rows[share["document"]][0] for shares in named for share in shares}
        documents = {
            rows[token["documents"][0]["document"]][1]
            for token in tokens
            if token["documents"] and token["influence"] > 0.9
        }
        right = sequence["prompt"] == prompt and expected in text
        if not right or stores - {store} or (document and document not in documents):
            self.mixed += 1

    async def stay(self, until):
        own = None
        while time.perf_counter() < until:
            try:
                if self.number % 8 == 0 and own is None:
                    own = f"{random.randrange(1000, 10_000)}"
                    text = f"The lighthouse of visitor {self.number} was painted in {own}."
                    controls = [TINY.name, ["manual"], 0.6, 1024, 0.03]
                    await self.event(self.build_event, [*controls, None, text, None])
                if own:
                    prompt = f"The lighthouse of visitor {self.number} was painted in"
                    await self.ask("your text", prompt, own, None)
                else:
                    await self.ask("manual", *self.fact)
            except (httpx.HTTPError, RuntimeError, ValueError) as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(0.5)


def facts_of(corpus):
    """Returns the beginning of a sentence about a number, its last words and its document."""
    found = []
    for line in corpus.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        sentences = [one.rsplit(" ", 2) for one in re.findall(r"[^.]+(?=\.)", row["text"])]
        begun, *last = next(one for one in sentences if re.search(r"\d", one[0]))
        found.append((begun.strip(), " ".join(last), row["id"]))
    return found


async def visit(args, server, facts):
    limits = httpx.Limits(max_connections=None)
    base = f"http://127.0.0.1:{args.port}"
    memory = []
    async with httpx.AsyncClient(base_url=base, timeout=180, limits=limits) as client:
        config = (await client.get("/config")).json()
        visitors = [
            Visitor(client, config, number, facts[number]) for number in range(args.visitors)
        ]
        until = time.perf_counter() + 60 * args.minutes
        work = [asyncio.create_task(one.stay(until)) for one in visitors]
        started = time.perf_counter()
        while not all(one.done() for one in work):
            memory.append((round(time.perf_counter() - started), round(resident(server.pid), 1)))
            await asyncio.wait(work, timeout=10)
        await asyncio.gather(*work)
    return visitors, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visitors", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--port", type=int, default=7895)
    args = parser.parse_args()
    facts = facts_of(TINY / "manual.jsonl")
    store = Path(tempfile.mkdtemp()) / "manual"
    corpus = knn_logits.read_corpus([str(TINY / "manual.jsonl")])
    index = knn_logits.IndexConfig(metric="cosine")
    settings = {"index": index, "k": 1024, "lmbda": 0.8, "temperature": 0.03}
    knn_logits.build_datastore(*load(TINY), corpus, store, **settings)
    server = subprocess.Popen(
        [sys.executable, "app/app.py", "--port", str(args.port)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MODEL": str(TINY), "DATASTORES": str(store)},
    )  # fmt: skip
    try:
        for _ in range(600):
            try:
                httpx.get(f"http://127.0.0.1:{args.port}/", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        visitors, memory = asyncio.run(visit(args, server, facts))
        time.sleep(5)
        after = resident(server.pid)
    finally:
        server.terminate()
        server.wait()
    latencies = sorted(one for visitor in visitors for one in visitor.latencies)
    errors = [one for visitor in visitors for one in visitor.errors]
    # Caches fill in the first minute. Memory that grows later would grow for ever.
    settled = [size for second, size in memory if second >= 60] or [memory[-1][1]]
    quarter = max(1, len(settled) // 4)
    result = {
        "answers": len(latencies),
        "errors": len(errors),
        "first_errors": errors[:3],
        "mixed": sum(one.mixed for one in visitors),
        "told_that_the_queue_is_full": sum(one.full for one in visitors),
        "latency_seconds": {
            "median": statistics.median(latencies),
            "p95": latencies[int(0.95 * (len(latencies) - 1))],
            "longest": latencies[-1],
        },
        "megabytes": {
            "start": memory[0][1],
            "after_a_minute": settled[0],
            "end": memory[-1][1],
            "after_all_left": round(after, 1),
            "first_quarter_after_a_minute": statistics.mean(settled[:quarter]),
            "last_quarter": statistics.mean(settled[-quarter:]),
        },
        "load": os.getloadavg(),
    }
    record("app_load", vars(args), result)


if __name__ == "__main__":
    main()
