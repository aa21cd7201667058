"""One answer after another: what the host does with them, and what the extension keeps of each."""

import copy
import html
import json
import re
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import LogitsProcessorList

from plugin.asking import PROMPT, answer, by_library

SHARP = {"lmbda": "0.95", "k": "4", "temperature": "0.05"}


@pytest.fixture
def on(extension, loaded, store):
    """The extension with a datastore whose vote nearly decides."""
    extension.params.update(datastore=str(store.folder), **SHARP)
    return extension


def sources(extension):
    """Tokens that the panel shows for the last answer."""
    page = re.search(r'srcdoc="([^"]*)"', extension.memory.sources_html()).group(1)
    content = re.search(r'id="content">(.*?)</script>', html.unescape(page), re.DOTALL).group(1)
    return [one["token"] for one in json.loads(content)["sides"]["knn"]["trace"]["tokens"]]


def prompt_ids(tokenizer):
    return tokenizer(PROMPT, return_tensors="pt")["input_ids"]


def run(model, ids, processors, **settings):
    with torch.no_grad():
        output = model.generate(
            ids, max_new_tokens=8, do_sample=False, logits_processor=processors, **settings
        )
    return output[0, ids.shape[1] :].tolist()


def test_several_answers_of_one_request_share_a_list_of_processors(on, loaded, tokenizer):
    ids, own = prompt_ids(tokenizer), lambda _, scores: scores
    processors = LogitsProcessorList([own])
    texts = []
    for _ in range(3):
        on.logits_processor_modifier(processors, ids)
        texts.append(run(loaded, ids, processors))
        on.output_modifier(tokenizer.decode(texts[-1]), {})
    assert texts[0] == texts[1] == texts[2]
    assert processors[-1] is own
    assert len(processors) == 3
    on.params["activate"] = False
    on.logits_processor_modifier(processors, ids)
    assert list(processors) == [own]


def test_the_hosts_processors_read_the_mixture(on, loaded, tokenizer):
    ids, seen = prompt_ids(tokenizer), []
    free = LogitsProcessorList([lambda _, scores: seen.append(scores.clone()) or scores])
    on.logits_processor_modifier(free, ids)
    likeliest = run(loaded, ids, free)[0]
    assert torch.allclose(seen[0].exp().sum(), torch.tensor(1.0), atol=1e-4)
    assert int(seen[0].argmax()) == likeliest

    def forbid(_, scores):
        scores[:, likeliest] -= 100.0
        return scores

    banned = LogitsProcessorList([forbid])
    on.logits_processor_modifier(banned, ids)
    assert likeliest not in run(loaded, ids, banned)


def test_a_loop_is_ended_as_the_library_ends_it(
    extension, host, loaded, tokenizer, store, monkeypatch
):
    from knn_logits import Datastore
    from knn_logits.store.records import SettingsRecord

    def like(size):
        record = SettingsRecord(k=4, lmbda=0.0, temperature=5.0, no_repeat_ngram_size=size)
        one = copy.copy(store)
        one.manifest = store.manifest.model_copy(update={"settings": record})
        return one

    monkeypatch.setattr(Datastore, "from_pretrained", lambda name: like(1))
    extension.params["datastore"] = str(store.folder)
    wanted = by_library(loaded, tokenizer, like(1))
    assert len(wanted) < len(by_library(loaded, tokenizer, like(None)))
    assert answer(extension, host)[0] == wanted


def test_an_answer_that_was_given_up_ends_while_the_next_one_is_written(on, loaded, tokenizer):
    ids, begun, go_on = prompt_ids(tokenizer), threading.Event(), threading.Event()
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
    assert "".join(sources(on)) == tokenizer.decode(written).rstrip("\ufffd")


def test_sources_are_those_of_a_text_that_was_cut_or_continued(on, host, tokenizer):
    written, _ = answer(on, host)
    whole = tokenizer.decode(written)
    assert len(whole) > 8
    cut = whole[: len(whole) // 2]
    on.memory.whole.clear()
    on.output_modifier(cut, {})
    shown = "".join(sources(on))
    assert shown.startswith(cut)
    assert len(shown) < len(whole)
    on.memory.whole.clear()
    on.output_modifier(f"What stood here before. {whole}", {}, is_chat=True)
    assert "".join(sources(on)) == whole.rstrip("\ufffd")


def test_html_in_a_text_is_read_as_the_host_shows_it(on, host, loaded, tokenizer):
    ids = prompt_ids(tokenizer)
    wanted = tokenizer(" <b> &amp; x", return_tensors="pt")["input_ids"]

    def force(input_ids, scores):
        token = wanted[0, input_ids.shape[1] - ids.shape[1]]
        return torch.full_like(scores, -100.0).index_fill(-1, token, 0.0)

    for shown in (html.escape(" <b> &amp; x"), " <b> &amp; x"):
        processors = LogitsProcessorList([force])
        on.logits_processor_modifier(processors, ids)
        with torch.no_grad():
            loaded.generate(
                ids, max_new_tokens=wanted.shape[1], do_sample=False, logits_processor=processors
            )
        on.output_modifier(shown, {})
        assert "".join(sources(on)) == " <b> &amp; x"


def test_sources_do_not_outlive_their_answer(on, host):
    memory = on.memory
    assert "No answer was written yet" in memory.sources_html()
    answer(on, host)
    assert "<iframe" in memory.sources_html()
    on.params["k"] = "3"
    memory.open(host.shared.model)
    assert "<iframe" in memory.sources_html()
    on.params["activate"] = False
    answer(on, host)
    assert "written without kNN" in memory.sources_html()
    on.params["activate"] = True
    answer(on, host)
    assert "<iframe" in memory.sources_html()
    assert memory.answers == 3
    on.params["k"] = "none"
    answer(on, host)
    assert "written without kNN" in memory.sources_html()


def test_the_page_waits_for_the_end_of_an_answer(on, host, loaded, tokenizer):
    memory = on.memory
    memory.wait(lambda: True)
    on.logits_processor_modifier(LogitsProcessorList(), prompt_ids(tokenizer))

    def wait():
        memory.wait(lambda: True)
        return memory.answers

    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(wait)
        on.output_modifier("x", {})
        assert told.result(120) == 1
    # The host gave an answer up, and nobody tells its end.
    on.logits_processor_modifier(LogitsProcessorList(), prompt_ids(tokenizer))
    memory.wait(lambda: False)
    assert memory.answers == 1


def test_a_lora_is_the_model_inside_it_and_is_checked_anew(on, host, loaded, tokenizer, store):
    alone = answer(on, host)[0]
    wrapped = types.SimpleNamespace(
        get_base_model=lambda: loaded, active_adapters=["one"], generate=loaded.generate
    )
    host.shared.model = wrapped
    assert answer(on, host) == (alone, 2)
    assert "<iframe" in on.memory.sources_html()
    wrapped.active_adapters = ["two"]
    with torch.no_grad():
        for weight in loaded.parameters():
            weight.mul_(0.5)
    assert answer(on, host)[1] == 0
    assert "other weights" in host.lines[-1]
    assert "without the LoRA" in host.lines[-1]
