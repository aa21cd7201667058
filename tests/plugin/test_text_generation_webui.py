"""The extension for text-generation-webui, called as the host calls it; the host is a stand-in."""

import copy
import gc
import html
import importlib.util
import json
import re
import sys
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from transformers import LogitsProcessorList

from knn_logits import KNNLogitsProcessor

SCRIPT = Path(__file__).parents[2] / "app" / "text_generation_webui" / "script.py"
PROMPT = "When error code E42 appears, open"


def answer(extension, host, *, thread=True, prompt=PROMPT, **settings):
    """One answer as the host writes it: the processors first, `generate()` in another thread."""
    model, tokenizer = host.shared.model, host.shared.tokenizer
    state = extension.state_modifier({"stream": thread})
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    processors = LogitsProcessorList()
    extension.logits_processor_modifier(processors, ids)

    given = (model, ids, processors, 12)
    with ThreadPoolExecutor(1) as other:
        written = (
            other.submit(run, *given, **settings).result() if thread else run(*given, **settings)
        )
    text = tokenizer.decode(written, skip_special_tokens=True)
    assert extension.output_modifier(text, state) == text
    return written, len(processors)


def run(model, ids, processors, new_tokens=8, **settings):
    """Tokens that the host writes with these processors."""
    settings = {"max_new_tokens": new_tokens, "do_sample": False, **settings}
    with torch.no_grad():
        output = model.generate(inputs=ids, logits_processor=processors, **settings)
    return output[0, ids.shape[1] :].tolist()


def by_library(model, tokenizer, store, **settings):
    """Tokens that the library alone writes."""
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(model, store, **settings) as knn:
        return run(model, ids, [knn], 12)


@pytest.fixture
def host(monkeypatch):
    """What the extension imports of the host: its model, and its log."""
    modules = types.ModuleType("modules")
    modules.shared = types.SimpleNamespace(model=None, tokenizer=None, gradio={})
    modules.logging_colors = types.ModuleType("modules.logging_colors")
    modules.lines = []
    modules.logging_colors.logger = types.SimpleNamespace(warning=modules.lines.append)
    monkeypatch.setitem(sys.modules, "modules.logging_colors", modules.logging_colors)
    monkeypatch.setitem(sys.modules, "modules", modules)
    return modules


@pytest.fixture
def extension(host):
    """The script, loaded as the host loads it: alone, under a name of its own."""
    spec = importlib.util.spec_from_file_location("user_ext_knn_logits", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def loaded(host, mine, tokenizer):
    host.shared.model, host.shared.tokenizer = mine, tokenizer
    return mine


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


def test_settings_hold_from_the_next_answer_on_and_are_checked_at_once(
    extension, host, loaded, tokenizer, store
):
    extension.params["datastore"] = f" {store.folder} "
    answer(extension, host)
    extension.params.update(lmbda="0.9", k="3", temperature="0.5")
    assert "kNN is on: texts, k 3, λ 0.9, τ 0.5" in extension.memory.status(loaded)
    wanted = by_library(loaded, tokenizer, store, lmbda=0.9, k=3, temperature=0.5)
    assert answer(extension, host)[0] == wanted
    extension.params["lmbda"] = "2"
    assert "lmbda must lie between 0 and 1" in extension.memory.status(loaded)
    assert not host.lines


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt_lookup_num_tokens": 3},
        {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[5, 6]])},
    ],
    ids=lambda one: next(iter(one)),
)
def test_the_hosts_ways_of_writing_keep_their_memory(
    extension, host, loaded, tokenizer, store, settings
):
    extension.params["datastore"] = str(store.folder)
    found = answer(extension, host, **settings)[0]
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(loaded, store) as knn:
        output = loaded.generate(
            ids, max_new_tokens=12, do_sample=False, logits_processor=[knn], **settings
        )
    assert found == output[0, ids.shape[1] :].tolist()


@pytest.fixture
def on(extension, loaded, store):
    """The extension with a datastore whose vote nearly decides."""
    extension.params.update(datastore=str(store.folder), lmbda="0.95", k="4", temperature="0.05")
    return extension


def sources(extension):
    """Text that the panel shows for the last answer."""
    frame = extension.memory.sources_html()
    assert frame.startswith("<iframe sandbox=")
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame).group(1))
    content = re.search(r'id="content">(.*?)</script>', page, re.DOTALL).group(1)
    tokens = json.loads(content)["sides"]["knn"]["trace"]["tokens"]
    return "".join(one["token"] for one in tokens)


@pytest.mark.parametrize("settings", [{}, {"prompt_lookup_num_tokens": 3}], ids=str)
def test_the_last_answer_shows_its_sources(on, host, tokenizer, settings):
    assert "No answer" in on.memory.sources_html()
    written, _ = answer(on, host, **settings)
    whole = tokenizer.decode(written).rstrip("\ufffd")
    assert sources(on).strip() == whole.strip()
    # A text that a stop text cut, or that follows another.
    on.output_modifier(whole[: len(whole) // 2], {})
    assert whole.startswith(sources(on))
    assert len(sources(on)) < len(whole)
    on.output_modifier(f"What stood here before. {whole}", {}, is_chat=True)
    assert sources(on).strip() == whole.strip()


def test_sources_do_not_outlive_their_answer(on, host):
    answer(on, host)
    on.params["k"] = "3"
    on.memory.status(host.shared.model)
    assert sources(on)
    for change in ({"activate": False}, {"activate": True, "k": "none"}):
        on.params.update(change)
        answer(on, host)
        assert "No answer was written with kNN" in on.memory.sources_html()
    assert on.memory.answers == 3


def test_html_in_a_text_is_read_as_the_host_shows_it(on, loaded, tokenizer):
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    wanted = tokenizer(" <b> &amp; x", return_tensors="pt")["input_ids"]

    def force(input_ids, scores):
        token = wanted[0, input_ids.shape[1] - ids.shape[1]]
        return torch.full_like(scores, -100.0).index_fill(-1, token, 0.0)

    for shown in (html.escape(" <b> &amp; x"), " <b> &amp; x"):
        processors = LogitsProcessorList([force])
        on.logits_processor_modifier(processors, ids)
        run(loaded, ids, processors, wanted.shape[1])
        on.output_modifier(shown, {})
        assert sources(on) == " <b> &amp; x"


def test_several_answers_of_one_request_share_a_list_of_processors(on, loaded, tokenizer):
    ids, seen = tokenizer(PROMPT, return_tensors="pt")["input_ids"], []
    processors = LogitsProcessorList([lambda _, scores: seen.append(scores.clone()) or scores])
    texts = []
    for _ in range(3):
        on.logits_processor_modifier(processors, ids)
        texts.append(run(loaded, ids, processors))
    assert texts[0] == texts[1] == texts[2]
    assert len(processors) == 3
    # The host's processors read the mixture.
    assert torch.allclose(seen[0].exp().sum(), torch.tensor(1.0), atol=1e-4)
    on.params["activate"] = False
    on.logits_processor_modifier(processors, ids)
    assert len(processors) == 1


def test_an_answer_that_was_given_up_ends_while_the_next_one_is_written(on, loaded, tokenizer):
    ids, begun, go_on = tokenizer(PROMPT, return_tensors="pt")["input_ids"], Event(), Event()
    first = LogitsProcessorList()

    def pause(_, scores):
        begun.set()
        assert go_on.wait(120)
        return scores

    on.logits_processor_modifier(first, ids)
    first.append(pause)
    with ThreadPoolExecutor(1) as thread:
        given_up = thread.submit(run, loaded, ids, first)
        assert begun.wait(120)
        on.params["k"] = "3"
        second = LogitsProcessorList()
        on.logits_processor_modifier(second, ids)
        written = run(loaded, ids, second)
        go_on.set()
        given_up.result()
    on.output_modifier(tokenizer.decode(written), {})
    assert sources(on) == tokenizer.decode(written).rstrip("\ufffd")


def test_a_lora_is_the_model_inside_it_and_is_checked_anew(on, host, loaded):
    alone = answer(on, host)[0]
    wrapped = types.SimpleNamespace(
        get_base_model=lambda: loaded, active_adapters=["one"], generate=loaded.generate
    )
    host.shared.model = wrapped
    assert answer(on, host) == (alone, 2)
    assert sources(on)
    wrapped.active_adapters = ["two"]
    with torch.no_grad():
        for weight in loaded.parameters():
            weight.mul_(0.5)
    assert answer(on, host)[1] == 0
    assert "its keys differ" in host.lines[-1]
    assert "has a LoRA" in host.lines[-1]


def test_a_missing_package_is_named_with_the_command_that_installs_it(on, host, monkeypatch):
    monkeypatch.setitem(sys.modules, "knn_logits", None)
    written, count = answer(on, host)
    assert (len(written), count) == (12, 0)
    (line,) = host.lines
    assert line.startswith("kNN is off: knn_logits is not installed")
    assert f'"{sys.executable}" -m pip install "' in line


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
        ({"lmbda": "much"}, "lmbda is not a number"),
        ({"k": "0"}, "k must"),
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
        extension.state_modifier({})
        assert advice in host.lines[0]
        assert type(model).__name__ in host.lines[0]
        processors = LogitsProcessorList()
        extension.logits_processor_modifier(processors, torch.zeros(1, 3, dtype=torch.int64))
        assert len(processors) == 0
        assert len(host.lines) == 1


def test_the_panel_is_made_of_what_the_host_has(extension, host, loaded, store):
    gradio = pytest.importorskip("gradio")
    with gradio.Blocks() as page:
        host.shared.gradio = {"display": gradio.HTML()}
        extension.ui()
    labels = {getattr(one, "label", None) for one in page.blocks.values()}
    assert {"kNN", "Datastore", "k, neighbors"} <= labels
