"""A server of the tiny model with its datastore of `TEXTS`, and OpenAI's own client."""

import contextlib
import json
import socket
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A checkout that is not installed needs these paths.
for folder in (ROOT, ROOT / "app"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

for name in ("starlette", "uvicorn"):
    pytest.importorskip(name, reason="the server needs Starlette: pip install 'knn-logits[serve]'")

PROMPT = "When error code E42 appears, open"


class RunningServer:
    """A server that runs in a thread of this process."""

    def __init__(self, served, **settings):
        from knn_logits_serve.server import Settings, listen, server_of

        self.settings = Settings(port=0, **settings)
        bound = listen(self.settings)
        bound.listen(512)
        self.port = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = server_of(served, self.settings)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [bound]})
        self._thread.start()

    def client(self, key="none"):
        """OpenAI's client, without retries."""
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def close(self):
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def serving(served, **settings):
    running = RunningServer(served, **settings)
    try:
        yield running
    finally:
        running.close()


def sent(running, body):
    """Returns a connection that has asked for a completion, whose answer nobody has read."""
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    line = socket.create_connection(("127.0.0.1", running.port))
    line.sendall(head.encode() + b"\r\n" + content)
    return line


class Held:
    """A function of the model that waits, before it begins, until it is let go.

    It notes how many rows each call of the server has.
    """

    def __init__(self, owner, name, monkeypatch):
        self._go = threading.Event()
        self.rows = []
        function = getattr(owner, name)

        def held(*args, **kwargs):
            if threading.current_thread().name.startswith("write"):  # not the test itself
                self.rows.append(len(kwargs["input_ids"] if "input_ids" in kwargs else args[0]))
                assert self._go.wait(60)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, held)

    def go(self):
        self._go.set()


@pytest.fixture
def held(served, monkeypatch):
    """The server's calls of the model's `generate`."""
    found = Held(served.model, "generate", monkeypatch)
    yield found
    found.go()


@pytest.fixture(scope="package")
def served(model, tokenizer, store):
    from knn_logits_serve.served import Served

    return Served("tiny", model, tokenizer, {"texts": store})


@pytest.fixture(scope="package")
def running(served):
    """The server that most tests use."""
    with serving(served) as found:
        yield found


@pytest.fixture(scope="package")
def url(running):
    return running.url


@pytest.fixture(scope="package")
def http(url):
    """A plain HTTP client."""
    import httpx

    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="package")
def openai():
    return pytest.importorskip("openai", reason="pip install -r requirements-dev.txt")


@pytest.fixture(scope="package")
def client(openai, running):
    """OpenAI's client of the server that most tests use."""
    with running.client() as found:
        yield found


@pytest.fixture(scope="package")
def by_library(model, tokenizer, store):
    """Writes with the library and no server, and returns the text, its ids and its scores."""
    import torch

    from knn_logits import KNNLogitsProcessor
    from knn_logits.mixture.presets import generation_settings
    from knn_logits_app.decoding import PositionSampler

    def write(prompt=PROMPT, new_tokens=12, *, seed=None, warpers=(), knn=True, **settings):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with contextlib.ExitStack() as stack:
            processors = []
            options = {}
            if knn:
                processor = KNNLogitsProcessor(model, store, **settings)
                processors.append(stack.enter_context(processor))
                options = generation_settings(store)
            processors += warpers
            if seed is not None:
                processors.append(PositionSampler(seed))
            with torch.no_grad():
                output = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=new_tokens,
                    do_sample=False,
                    logits_processor=processors,
                    output_scores=True,
                    return_dict_in_generate=True,
                    **options,
                )
        written = output.sequences[0, ids.shape[1] :].tolist()
        while written and written[-1] == 0:
            written.pop()
        # If the last token is only a part of a character, the server does not send it yet.
        return tokenizer.decode(written).rstrip("\ufffd"), written, output.scores

    return write
