"""The clients of `serving.py`, in a process of their own, so that they take no time of the server.

python benchmarks/serving_clients.py URL MODEL TOKENS

Reads lines of JSON, each with the prompts to send and how many clients send them at once, and
prints for each line the seconds until the last answer and the number of tokens of all answers.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx


def write(client, model, tokens, prompt):
    """Returns how many tokens the server wrote after a prompt."""
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    answer = client.post("/v1/completions", json=asked)
    answer.raise_for_status()
    return answer.json()["usage"]["completion_tokens"]


def main():
    url, model, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        ask = partial(write, client, model, tokens)
        for line in sys.stdin:
            asked = json.loads(line)
            with ThreadPoolExecutor(asked["clients"]) as clients:
                started = time.perf_counter()
                written = sum(clients.map(ask, asked["prompts"]))
                seconds = time.perf_counter() - started
            print(json.dumps({"seconds": seconds, "tokens": written}), flush=True)


if __name__ == "__main__":
    main()
