"""`knn-logits app`, and the page that it starts."""

import importlib.util
import inspect

import pytest

import knn_logits_app.server
from app.conftest import serving
from knn_logits_app.server import prepare


@pytest.fixture
def launched(monkeypatch):
    """What the command would have served."""
    calls = []
    monkeypatch.setattr(
        knn_logits_app.server, "launch", lambda library, **given: calls.append((library, given))
    )
    return calls


def test_the_command_opens_the_model_with_its_datastores(run, launched, model_folder, store):
    run.good("app", model_folder, store.folder, "--port", "7999")
    ((library, given),) = launched
    assert list(library.stores) == [store.name]
    assert library.name == "tiny"
    assert given["port"] == 7999
    given["on_ready"]("http://127.0.0.1:7999")


def test_without_gradio_one_line_names_the_extra(run, monkeypatch, model_folder, store):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "knn_logits.cli.serve.find_spec", lambda name: None if name == "gradio" else found(name)
    )
    done = run.refused("app", model_folder, store.folder)
    assert 'pip install "knn-logits[app]"' in done.line


def test_refusals_are_one_line(run, model_folder, store, monkeypatch, marian_folder, pair_store):
    def busy(*_, **__):
        raise OSError("Cannot find empty port in range: 80-80")

    monkeypatch.setattr("knn_logits_app.server.launch", busy)
    run.refused("app", model_folder, "/nowhere")
    assert "--port" in run.refused("app", model_folder, store.folder).line
    assert "encoder-decoder" in run.refused("app", marian_folder, pair_store.folder).line


def test_a_page_prints_nothing(library, capfd):
    with serving(library):
        pass
    assert capfd.readouterr().out == ""


def test_a_page_without_requests_rests(library):
    page, server = prepare(library)
    server.visitors.close()
    waiting = inspect.getsource(type(page._queue).start_processing)
    assert "asyncio.sleep(self.sleep_when_free)" in waiting
    # gradio's own pause of 0.001 takes 7% of a core.
    assert page._queue.sleep_when_free == 0.02
