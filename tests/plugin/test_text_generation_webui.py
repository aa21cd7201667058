"""The extension for text-generation-webui, called as the host calls it; the host is a stand-in."""

import copy
import gc
import html
import json
import re
import shutil
import sys
import weakref

import pytest
import torch
from transformers import LogitsProcessorList

from plugin.asking import PROMPT, answer, by_library


@pytest.mark.parametrize("thread", [True, False], ids=["streaming", "at once"])
def test_an_answer_is_the_librarys(extension, host, loaded, tokenizer, store, thread):
    alone, count = answer(extension, host)
    assert count == 0
    extension.params["datastore"] = str(store.folder)
    mixed, count = answer(extension, host, thread=thread)
    assert count == 2
    assert mixed == by_library(loaded, tokenizer, store) != alone
    extension.params["activate"] = False
    assert answer(extension, host) == (alone, 0)


def test_settings_hold_from_the_next_answer_on(extension, host, loaded, tokenizer, store, tmp_path):
    extension.params["datastore"] = str(store.folder)
    answer(extension, host)
    extension.params.update(lmbda="0.9", k="3", temperature="0.5", retomaton="off")
    wanted = by_library(loaded, tokenizer, store, lmbda=0.9, k=3, temperature=0.5, retomaton=False)
    assert answer(extension, host)[0] == wanted
    status = extension.memory.status(loaded)
    assert "k 3, λ 0.9, τ 0.5, RetoMaton off" in status
    settings = store.manifest.settings.model_copy(update={"suffix_weight": 4.0})
    weighed = store.manifest.model_copy(update={"settings": settings})
    folder = shutil.copytree(store.folder, tmp_path / "weighed")
    weighed.write(folder)
    extension.params.update(datastore=str(folder), k="")
    answer(extension, host)
    status = extension.memory.status(loaded)
    assert "τ 0.5, suffix weight 4, RetoMaton off" in status


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt_lookup_num_tokens": 3},
        {"cache_implementation": "static"},
        {"use_cache": False},
        {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[5, 6]])},
    ],
    ids=lambda one: next(iter(one)),
)
def test_the_hosts_ways_of_writing_keep_their_memory(
    extension, host, loaded, tokenizer, store, settings
):
    from knn_logits import KNNLogitsProcessor

    extension.params["datastore"] = str(store.folder)
    found = answer(extension, host, **settings)[0]
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(loaded, store) as knn:
        output = loaded.generate(
            ids, max_new_tokens=12, do_sample=False, logits_processor=[knn], **settings
        )
    assert found == output[0, ids.shape[1] :].tolist()


def test_the_last_answer_shows_its_sources(extension, host, loaded, store):
    assert "No answer" in extension.memory.sources_html()
    extension.params.update(datastore=str(store.folder), lmbda="0.95", k="4", temperature="0.05")
    for settings in ({}, {"prompt_lookup_num_tokens": 3}):
        written, _ = answer(extension, host, **settings)
        frame = extension.memory.sources_html()
        assert frame.startswith("<iframe sandbox=")
        page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame).group(1))
        content = re.search(r'id="content">(.*?)</script>', page, re.DOTALL).group(1)
        tokens = json.loads(content)["sides"]["knn"]["trace"]["tokens"]
        shown = "".join(one["token"] for one in tokens)
        said = host.shared.tokenizer.decode(written).rstrip("\ufffd")
        assert "".join(shown.split()) == "".join(said.split())


def test_a_model_that_is_swapped_or_unloaded_is_let_go(
    extension, host, loaded, mine, tokenizer, store
):
    extension.params["datastore"] = str(store.folder)
    host.shared.model = copy.deepcopy(mine)
    first = answer(extension, host)[0]
    gone = weakref.ref(host.shared.model)
    host.shared.model = None
    gc.collect()
    assert gone() is None
    assert "no model is loaded" in extension.memory.status(None)
    extension.state_modifier({})
    host.shared.model = copy.deepcopy(mine)
    assert answer(extension, host)[0] == first


def test_another_model_goes_on_without_knn(extension, host, loaded, tokenizer, store):
    from conftest import make_gpt2

    extension.params["datastore"] = str(store.folder)
    host.shared.model = make_gpt2(seed=7)
    written, count = answer(extension, host)
    assert (len(written), count) == (12, 0)
    answer(extension, host)
    (line,) = host.lines
    assert line.startswith("kNN is off: ")
    assert "kNN is off" in extension.memory.status(host.shared.model)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"datastore": ""}, "name a datastore"),
        ({"datastore": "/nowhere"}, "kNN is off: "),
        ({"lmbda": "much"}, "λ is not a number"),
        ({"lmbda": "2"}, "lmbda"),
        ({"k": "0"}, "k"),
    ],
)
def test_what_does_not_work_is_one_line_and_the_host_writes_on(
    extension, host, loaded, store, params, line
):
    extension.params["datastore"] = str(store.folder)
    extension.params.update(params)
    written, count = answer(extension, host)
    assert (len(written), count) == (12, 0)
    answer(extension, host)
    assert len(host.lines) == 1
    assert line in host.lines[0]
    assert "\n" not in host.lines[0]


def test_a_loader_without_hidden_states_is_named(extension, host, mine, tokenizer, store):
    extension.params["datastore"] = str(store.folder)
    wrapper = type("Exllamav3HF", (type(mine),), {"__module__": "modules.exllamav3_hf"})
    llama = type("LlamaServer", (), {"__module__": "modules.llama_cpp_server"})
    models = {"Load the model with the Transformers loader": wrapper(mine.config)}
    models["knn-logits serve FILE.gguf DATASTORE"] = llama()
    for advice, model in models.items():
        host.shared.model = model
        host.lines.clear()
        extension.memory.changed()
        extension.state_modifier({})
        assert advice in host.lines[0]
        assert type(model).__name__ in host.lines[0]
        processors = LogitsProcessorList()
        extension.logits_processor_modifier(processors, torch.zeros(1, 3, dtype=torch.int64))
        assert len(processors) == 0
        assert len(host.lines) == 1


def test_a_host_without_transformers_answers_on(extension, host, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    host.shared.model = type("LlamaServer", (), {"__module__": "modules.llama_cpp_server"})()
    for datastore in ("", "store"):
        extension.params["datastore"] = datastore
        assert extension.state_modifier({}) == {}
        assert "knn-logits serve FILE.gguf" in extension.memory.status(host.shared.model)
    assert len(host.lines) == 1


def test_the_panel_is_made_of_what_the_host_has(extension, host, loaded, store):
    gradio = pytest.importorskip("gradio")
    with gradio.Blocks() as page:
        host.shared.gradio = {"display": gradio.HTML()}
        extension.ui()
    labels = {getattr(one, "label", None) for one in page.blocks.values()}
    assert {"kNN", "Datastore", "RetoMaton: follow passages"} <= labels
