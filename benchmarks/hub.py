"""Counts the bytes of fetching a datastore from the Hub without keys, and after killed downloads.

python benchmarks/hub.py STORE

It uses the tests' Hub on the loopback interface, where bytes can be counted. Times would mean
nothing there.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import record

import knn_logits

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "hub"))
from loopback import Fault, Hub

NAME = "org/name"
OPEN = """
import sys, huggingface_hub, knn_logits
print("ready", flush=True)
knn_logits.pull(sys.argv[1], keys=sys.argv[2] == "keys")
"""


def client(hub, home, keys):
    """Starts a process that fetches the datastore, and returns it when it is ready to begin."""
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    words = [sys.executable, "-c", OPEN, NAME, "keys" if keys else "none"]
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.readline()
    return process


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    store = knn_logits.Datastore(args.store)
    files = store.manifest.files
    whole = sum(one.bytes for one in files)
    hub = Hub()
    names = [*(one.name for one in files), "datastore.json"]
    hub.repo(NAME).commit({name: (store.folder / name).read_bytes() for name in names})
    with tempfile.TemporaryDirectory() as home:
        client(hub, home, keys=False).wait()
        light = hub.sent()
    hub.requests.clear()
    largest = max(one.bytes for one in files)
    chance, kills = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as home:
        # The Hub is slow, so that a download can be killed in the middle of a file.
        for name in names:
            hub.faults[name] = Fault("slow", rate=largest)
        while kills < args.kills:
            limit = hub.sent() + chance.uniform(0.0, 1.2) * largest
            process = client(hub, home, keys=True)
            while process.poll() is None and hub.sent() < limit:
                time.sleep(0.005)
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        hub.faults.clear()
        ended = client(hub, home, keys=True).wait()
        again = hub.sent() - hub.sent("datastore.json") - whole
        blobs = Path(home) / "hub" / "datasets--org--name" / "blobs"
        abandoned = len(list(blobs.glob("*.incomplete")))
    assert ended == 0
    record(
        "hub",
        vars(args),
        {
            "bytes": whole,
            "bytes_without_keys": light,
            "share_without_keys": light / whole,
            "largest_file": largest,
            "kills": kills,
            "bytes_fetched_again": again,
            "bytes_fetched_again_per_kill": again / max(1, kills),
            "within_one_file_a_kill": again <= kills * largest,
            "abandoned_parts": abandoned,
        },
    )
    print(json.dumps({"shards": len(store.manifest.key_shards)}))


if __name__ == "__main__":
    main()
