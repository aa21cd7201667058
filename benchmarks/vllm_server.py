"""vLLM's server with a memory: beside our own, through OpenAI's client, and under many requests.

python benchmarks/vllm_server.py MODEL STORE TEXT clients
python benchmarks/vllm_server.py MODEL STORE TEXT api
python benchmarks/vllm_server.py MODEL STORE TEXT many --other STORE

Prompts are beginnings of the documents of a text that the datastore does not hold. `clients` lets
1, 4 and 16 clients ask `knn-logits serve` and vLLM in turn. `api` asks with OpenAI's client for
what applications use. `many` sends requests to two datastores, closes some streams after a token,
leaves others unread, and compares the sources of each answer with its tokens and its settings.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import psutil
from common import record
from openai import AsyncOpenAI, BadRequestError, OpenAI
from serving import Server, write_one
from transformers import AutoTokenizer
from vllm_engine import asks_vllm, prompts_of

import knn_logits

PORT = 8765
URL = f"http://127.0.0.1:{PORT}"
ON, OFF = {"knn_lmbda": 0.3}, {"knn": 0}
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "number": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["title", "number"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    # Without `strict`, vLLM's grammar lets the arguments be any JSON.
    "function": {
        "name": "find",
        "description": "Finds a document.",
        "parameters": SCHEMA,
        "strict": True,
    },
}


class VLLM:
    """vLLM's server in a process of its own."""

    def __init__(self, args, folder, *options):
        self._log = (Path(folder) / "vllm.log").open("w+")
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", args.model, "--served-model-name", "model", "--port", str(PORT)]
        command += ["--dtype", args.dtype, "--max-model-len", "1024", "--max-num-seqs", "64"]
        stores = ",".join(filter(None, (args.store, args.other)))
        environment = {"KNN_LOGITS_DATASTORE": stores, "VLLM_PLUGINS": "knn_logits"}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self._process = subprocess.Popen(
            [*command, *args.options.split(), *options],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        until = time.monotonic() + 600
        while time.monotonic() < until and self._process.poll() is None:
            try:
                if httpx.get(f"{URL}/health", trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise SystemExit(f"vLLM did not start: {Path(self._log.name).read_text()[-4000:]}")

    def _processes(self):
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def megabytes(self):
        return sum(one.memory_info().rss for one in self._processes()) / 1e6

    def processor_seconds(self):
        return sum(sum(one.cpu_times()[:2]) for one in self._processes())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            lines = Path(self._log.name).read_text().splitlines()
            print(*[line for line in lines if "ERROR" in line][:100], sep="\n")
        self._process.terminate()
        self._process.wait(60)


def clients(args, prompts):
    """Tokens a second, of the clock and of the processor, of both servers."""
    texts = [AutoTokenizer.from_pretrained(args.model).decode(one) for one in prompts]
    result = {}
    with tempfile.TemporaryDirectory() as folder, VLLM(args, folder) as vllm:
        own = Server(args.model, args.store, args.tokens, folder, args.dtype)

        def ask(number):
            with httpx.Client(base_url=URL, timeout=600, trust_env=False) as client:
                one = partial(write_one, client, "model", args.tokens)
                with ThreadPoolExecutor(number) as threads:
                    started, before = time.perf_counter(), vllm.processor_seconds()
                    written = sum(threads.map(one, texts[: max(4, number)]))
                    processor = vllm.processor_seconds() - before
                    return time.perf_counter() - started, processor, written

        write = {
            "vLLM": ask,
            "knn-logits serve": lambda number: own.write(texts[: max(4, number)], number),
        }
        for number in (1, 4, 16):
            best = {}
            for _ in range(args.rounds):
                for name, way in write.items():
                    *took, tokens = way(number)
                    rates = [tokens / seconds for seconds in took]
                    best[name] = [*map(max, zip(rates, best.get(name, rates), strict=True))]
            ours = best["knn-logits serve"]
            ratio = [one / other for one, other in zip(best["vLLM"], ours, strict=True)]
            result[f"{number} clients"] = {
                name: dict(zip(("clock", "processor"), rates, strict=True))
                for name, rates in (best | {"ratio": ratio}).items()
            }
            print(number, result[f"{number} clients"], flush=True)
        own.close()
    return result


def api(args, prompts):
    """Whether each kind of request works with the memory on and off."""
    prompt = AutoTokenizer.from_pretrained(args.model).decode(prompts[3])
    messages = [{"role": "user", "content": "Which PEP describes the walrus operator?"}]
    result = {}
    options = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with tempfile.TemporaryDirectory() as folder, VLLM(args, folder, *options):
        client = OpenAI(base_url=f"{URL}/v1", api_key="none")
        write = partial(client.completions.create, model="model", temperature=0)
        chat = partial(client.chat.completions.create, model="model", temperature=0)
        rows = {}
        for name, knn in (("on", ON), ("off", OFF)):
            extra = {"extra_body": {"vllm_xargs": knn}}
            answer = write(prompt=prompt, max_tokens=16, logprobs=2, **extra)
            choice = answer.choices[0]
            rows[name] = choice.logprobs.token_logprobs
            sources = httpx.get(f"{URL}/knn/sources/{answer.id}", trust_env=False)
            texts = sources.json()["texts"] if sources.status_code == 200 else []
            parts = write(prompt=prompt, max_tokens=16, stream=True, **extra)
            streamed = "".join(part.choices[0].text for part in parts)
            said = chat(messages=messages, max_tokens=16, logprobs=True, top_logprobs=2, **extra)
            parts = chat(messages=messages, max_tokens=16, stream=True, **extra)
            spoken = "".join(part.choices[0].delta.content or "" for part in parts)
            shape = {"type": "json_schema", "json_schema": {"name": "pep", "schema": SCHEMA}}
            formed = chat(messages=messages, max_tokens=200, response_format=shape, **extra)
            value = json.loads(formed.choices[0].message.content)
            used = chat(
                messages=messages,
                max_tokens=200,
                tools=[TOOL],
                tool_choice={"type": "function", "function": {"name": "find"}},
                **extra,
            )
            calls = [one.function for one in used.choices[0].message.tool_calls or []]
            result[f"knn {name}"] = {
                "completions": len(choice.text) > 0,
                "sources": [len(one["tokens"]) for one in texts] == ([16] if knn is ON else []),
                "completions, streamed": streamed == choice.text,
                "chat": len(said.choices[0].message.content) > 0,
                "chat, streamed": spoken == said.choices[0].message.content,
                "chat, log-probabilities": len(said.choices[0].logprobs.content) == 16,
                "JSON schema": set(value) == {"title", "number"},
                "tools": [(one.name, set(json.loads(one.arguments))) for one in calls]
                == [("find", set(value))],
            }
        result["log-probabilities differ"] = rows["on"] != rows["off"]
        try:
            write(prompt="x", extra_body={"vllm_xargs": {"knn_lmbda": 3}})
        except BadRequestError as error:
            result["a wrong setting is refused"] = str(error)
    return result


async def one_request(client, number, prompts, stores, chance):
    """Sends a request. Returns how it ended, and what is wrong with its sources."""
    kind = chance.choices(("read", "closed", "stalled"), (0.8, 0.15, 0.05))[0]
    name = chance.choice([*stores, None])
    knn = OFF if name is None else {"knn_datastores": [name], "knn_lmbda": chance.uniform(0.1, 0.9)}
    asked = {
        "model": "model",
        "prompt": prompts[number % 4],
        "max_tokens": chance.randint(2, 8),
        "temperature": 1.0,
        "extra_body": {"vllm_xargs": knn, "return_token_ids": True, "ignore_eos": True},
    }
    if kind != "read":
        stream = await client.completions.create(stream=True, **asked)
        await anext(aiter(stream))
        if kind == "stalled":
            await asyncio.sleep(20)
        await stream.close()
        return kind, None
    answer = await client.completions.create(**asked)
    async with httpx.AsyncClient(trust_env=False, timeout=600) as web:
        found = await web.get(f"{URL}/knn/sources/{answer.id}")
    if name is None:
        return kind, None if found.status_code == 404 else "sources without a memory"
    (text,) = found.json()["texts"]
    if [one["token"] for one in text["tokens"]] != answer.choices[0].token_ids:
        return kind, "the tokens of another answer"
    behind = {document["document"] for one in text["tokens"] for document in one["documents"]}
    return kind, None if behind <= stores[name] else "documents of another datastore"


async def all_requests(args, prompts, server):
    stores = {}
    for folder in (args.store, args.other):
        store = knn_logits.Datastore(folder)
        stores[Path(folder).name] = {one.id for one in store.documents}
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", timeout=600, max_retries=0)
    chance, ended, wrong, memory = random.Random(0), {}, [], [server.megabytes()]
    limit = asyncio.Semaphore(64)

    async def one(number):
        async with limit:
            kind, fault = await one_request(client, number, prompts, stores, chance)
        ended[kind] = ended.get(kind, 0) + 1
        wrong.extend([fault] if fault else [])
        if sum(ended.values()) % 100 == 0:
            memory.append(server.megabytes())

    await asyncio.gather(*(one(number) for number in range(args.requests)))
    return {"ended": ended, "wrong": wrong, "megabytes of the server at each 100": memory}


def many(args, prompts):
    with tempfile.TemporaryDirectory() as folder, VLLM(args, folder) as server:
        return asyncio.run(all_requests(args, prompts, server))


def main():
    parts = {"clients": clients, "api": api, "many": many}
    parser = asks_vllm(__doc__.splitlines()[0], parts)
    parser.set_defaults(tokens=16, dtype="float32")
    parser.add_argument("--other", help="a second datastore, for many")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--options", default="--enforce-eager", help="options of vLLM's server")
    args = parser.parse_args()
    prompts = prompts_of(args.text, AutoTokenizer.from_pretrained(args.model), 16)
    result = parts[args.part](args, prompts)
    record(f"vllm_server_{args.part}{args.name}", vars(args), result)


if __name__ == "__main__":
    main()
