"""Runs a client of the Hub in its own process, since it reads its environment at import."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from commands import Result

NAME = "org/texts"
OPEN = "store = Datastore.from_pretrained(name, cache_dir=cache)\n"
WHOLE = OPEN + "store.fetch_keys()\nresult = str(store.folder)"

# The Hub's client asks again after 1, 2, 4 and 8 seconds. Here it asks again at once.
AT_ONCE = """
import time
import huggingface_hub.file_download as _file_download
import huggingface_hub.utils._http as _http

class _Clock:
    def __getattr__(self, name):
        return getattr(time, name)
    def sleep(self, seconds):
        pass

_file_download.time = _http.time = _Clock()
"""

# Runs `knn-logits WORDS`: the exit status, and what was printed.
COMMAND = """
import contextlib, io
from knn_logits.cli import main
out, err, status = io.StringIO(), io.StringIO(), 0
sys.argv = ["knn-logits", *words]
with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
        main()
    except SystemExit as stop:
        status = stop.code or 0
result = [status, out.getvalue(), err.getvalue()]
"""

_PROGRAM = """
import json, sys
import knn_logits, huggingface_hub
from knn_logits import Datastore
for line in sys.stdin:
    job = json.loads(line)
    names = {**globals(), **job["names"], "result": None}
    try:
        exec(job["code"], names)
        answer = {"result": names["result"]}
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)
"""


class Failed(Exception):
    """The process raised an error, whose class and message this has."""

    def __init__(self, kind, message):
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


def environment(hub, home, **extra):
    """Returns the environment of a user with the Hub `hub` and a home folder."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGING_FACE_", "KNN_LOGITS_"))
    }
    return {
        **kept,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "KNN_LOGITS_CACHE": str(home / "knn-logits"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
    }


class Worker:
    """Runs snippets of code, and returns what they assign to `result`."""

    def __init__(self, env):
        self.home = env["HF_HOME"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", AT_ONCE + _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def __call__(self, code, **names):
        job = {"code": code, "names": {key: _plain(value) for key, value in names.items()}}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Failed(answer["error"], answer["message"])
        return answer["result"]

    def command(self, *words):
        """Runs the command line, and gives its exit status, its output and its messages."""
        status, out, err = self(COMMAND, words=list(map(str, words)))
        return Result(status, out, err)

    def close(self):
        self.process.stdin.close()
        self.process.wait(180)
        self.process.stdout.close()


def fails(worker, pattern, code=WHOLE, **names):
    """Runs code that fails with one line that says why, and returns the failure."""
    with pytest.raises(Failed, match=pattern) as failed:
        worker(code, **names)
    assert "\n" not in failed.value.message
    return failed.value


def _plain(value):
    return value if isinstance(value, (str, int, float, bool, list, type(None))) else str(value)


def content(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name != ".lock"}


def arrays_of(store):
    """Returns all arrays that a search depends on."""
    found = {"tokens": np.asarray(store.tokens), **store.checks, **(store.index_arrays or {})}
    if store.has_keys:
        found["keys"] = store.keys(np.arange(len(store)))
    return found
