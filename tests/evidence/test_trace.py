"""Traces: what is recorded, put together, shown, saved and loaded."""

import errno
import json
from html import unescape

import pytest
import torch
from conftest import TEXTS

from knn_logits import KNNLogitsProcessor, Trace, explain
from knn_logits.errors import StorageError, TraceError
from knn_logits.evidence.sources import main_sources
from knn_logits.evidence.trace import to_html

EVERY = {"k": 400, "lmbda": 0.3, "temperature": 1000.0}


def test_the_passage_holds_the_word(traced, tokenizer):
    _, output, trace = traced
    sequence = trace[0]
    assert sequence.prompt == "The harbour crane"
    assert sequence.prompt + sequence.text == tokenizer.decode(output[0])
    assert sequence.text.startswith(" lifts twelve crates")
    for token in sequence.tokens:
        assert token.influence > 0.5
        for neighbor in token.neighbors:
            assert neighbor.word == token.token
            assert neighbor.snippet in TEXTS[int(neighbor.document)]
            assert neighbor.before + neighbor.word + neighbor.after == neighbor.snippet
        assert token.neighbors[0].document == token.documents[0].document


def test_the_models_own_choice_is_named(model, tokenizer, store):
    trace = explain(model, tokenizer, store, TEXTS[1], lmbda=0.5)
    ids = torch.tensor([tokenizer(TEXTS[1])["input_ids"]])
    with torch.no_grad():
        best = model(ids).logits[0].softmax(-1).max(-1)
    for place, token in enumerate(trace[0].tokens):
        if token.token_id == int(best.indices[place]):
            assert token.by_model is None
        else:
            assert token.by_model.p == pytest.approx(float(best.values[place]), rel=1e-3)


def test_explain_agrees_with_generation(traced, model, tokenizer, store):
    _, output, trace = traced
    text = tokenizer.decode(output[0])
    explained = explain(model, tokenizer, store.folder, text, lmbda=0.9, temperature=0.5)
    new = explained[0].tokens[-len(trace[0].tokens) :]
    for one, other in zip(new, trace[0].tokens, strict=True):
        assert one.token == other.token
        assert one.p == pytest.approx(other.p, abs=1e-4)
        assert one.p_lm == pytest.approx(other.p_lm, abs=1e-4)
        choices = [found.by_model and found.by_model.token for found in (one, other)]
        assert choices[0] == choices[1]
        assert [n.entry for n in one.neighbors] == [n.entry for n in other.neighbors]


def test_a_trace_is_kept_as_json(traced, tmp_path):
    trace = traced[2]
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace
    content = json.loads((tmp_path / "trace.json").read_text())
    first = content["sequences"][0]["tokens"][0]
    assert {"token", "p", "p_lm", "p_knn", "lmbda", "influence", "neighbors"} <= set(first)
    assert {"snippet", "document", "weight", "distance"} <= set(first["neighbors"][0])


def test_a_file_stays_whole_if_the_disk_is_full(traced, tmp_path, monkeypatch):
    trace = traced[2]
    trace.save(tmp_path / "t.json")
    trace.save_html(tmp_path / "t.html")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for save, name in ((trace.save, "t.json"), (trace.save_html, "t.html")):
        with pytest.raises(StorageError, match="No space left"):
            save(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "knn-logits trace"}', "nonsense"])
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(TraceError, match="is not a trace"):
        Trace.load(tmp_path / "x.json")


def test_a_foreign_output_is_refused(traced, tokenizer):
    knn, output, _ = traced
    with pytest.raises(TraceError, match="no record of that generation"):
        knn.trace(torch.full((1, 9), 7), tokenizer)
    for other in ("text", output[0], output.float()):
        with pytest.raises(TraceError, match="needs an output of generate"):
            knn.trace(other, tokenizer)
    changed = output.clone()
    changed[0, -3] = (changed[0, -3] + 1) % 384
    with pytest.raises(TraceError):
        knn.trace(changed, tokenizer)


def test_a_token_that_another_processor_forces_has_no_influence(model, tokenizer, store, tmp_path):
    """The mixture gives it no probability, and JSON has no NaN."""
    inputs = tokenizer("When error code E42 appears, open", return_tensors="pt")
    with KNNLogitsProcessor(model, store, k=64, lmbda=0.9) as knn:
        said = model.generate(**inputs, max_new_tokens=1, do_sample=False, logits_processor=[knn])
        token = int(said[0, -1])

        def force(_, scores):
            return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([token]), 0.0)

        output = model.generate(
            **inputs, max_new_tokens=1, do_sample=False, bad_words_ids=[[token]],
            logits_processor=[knn, force],
        )  # fmt: skip
        assert output[0, -1] == token
        trace = knn.trace(output, tokenizer)
    assert trace[0].tokens[0].influence == 0.0
    trace.save(tmp_path / "t.json")
    assert "NaN" not in (tmp_path / "t.json").read_text()


def test_without_recording_there_is_no_trace(model, tokenizer, store):
    inputs = tokenizer("The harbour crane", return_tensors="pt")
    with KNNLogitsProcessor(model, store, record=False) as knn:
        output = model.generate(**inputs, max_new_tokens=3, logits_processor=[knn])
        with pytest.raises(TraceError, match="record=True"):
            knn.trace(output, tokenizer)


def generated(model, knn, ids, **settings):
    settings = {"max_new_tokens": 6, "do_sample": False, "logits_processor": [knn]} | settings
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)


def test_padding_before_a_prompt_is_no_part_where_only_the_tokenizer_knows_it(
    mine, tokenizer, store
):
    mine.generation_config.pad_token_id, mine.generation_config.eos_token_id = None, 7
    tokenizer.padding_side = "left"
    prompts = ["The pump needs seven litres", "Crane"]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    with KNNLogitsProcessor(mine, store) as knn:
        output = knn.generate(**inputs, max_new_tokens=3, pad_token_id=tokenizer.pad_token_id)
        assert [one.prompt for one in knn.trace(output, tokenizer)] == prompts


def test_beams_are_explained_and_not_recorded(model, tokenizer, store):
    ids = tokenizer("The", return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(model, store) as knn:
        before = generated(model, knn, ids)
        output = generated(model, knn, ids, num_beams=3, max_new_tokens=24)
        with pytest.raises(TraceError, match="after beam search"):
            knn.trace(output, tokenizer)
        assert len(knn.trace(before, tokenizer)[0].tokens) == 6
        text = explain(model, tokenizer, knn.memory, output[0].tolist())[0].text
        assert tokenizer.decode(output[0]).endswith(text)


@pytest.mark.parametrize(
    ("prompt", "apart"),
    [("harbour crane", True), ("crane lifts ", False), ("a sea", False), ("", False)],
)
def test_a_prompt_is_apart_from_the_answer_where_other_text_follows_it(
    model, tokenizer, store, prompt, apart
):
    inputs = tokenizer("The harbour crane lifts", return_tensors="pt")
    with KNNLogitsProcessor(model, store) as knn:
        output = knn.generate(**inputs, max_new_tokens=2, do_sample=False)
        (sequence,) = knn.trace(output, tokenizer, prompt=prompt)
    assert (sequence.prompt, sequence.apart) == (prompt, apart)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("The harbour crane lifts twelve", []),
        ("The harbour winch lifts twelve", [("winch", None, "crane", "0")]),
        (
            "The chronicle says that King Maira founded",
            [("King", None, "Queen", "2"), ("tn", 1, "town", "2"), ("lear", 8, "year", "2")],
        ),
    ],
)
def test_a_text_that_was_generated_is_compared_with_its_prompt(
    model, tokenizer, store, prompt, found
):
    """The memory goes on with a passage, though the prompt has said otherwise before."""
    inputs = tokenizer(prompt, return_tensors="pt")
    with KNNLogitsProcessor(model, store, lmbda=0.95, temperature=0.5) as knn:
        output = knn.generate(**inputs, max_new_tokens=12, do_sample=False)
        (sequence,) = knn.trace(output, tokenizer)
    rivals = [(one.words.strip(), one.token, one.by_memory) for one in sequence.contradictions]
    assert [
        (words, token, rival.token.strip(), rival.document.document)
        for words, token, rival in rivals
    ] == found
    assert all(token.by_memory for token in sequence.tokens[:4] if token.unlike)
    flagged = {place for place, token in enumerate(sequence.tokens) if token.by_memory}
    assert flagged.issuperset(token for _, token, _ in rivals if token is not None)
    assert bool(flagged) == (len(found) > 1)


@pytest.mark.parametrize("prompt", ["A cat sleeps and", "Sleep needs oil of"])
def test_words_from_a_sentence_unlike_this_one_are_told_apart(
    model, tokenizer, store, capsys, prompt
):
    """Words that the memory copies from a passage do not make it one about the prompt."""
    inputs = tokenizer(prompt, return_tensors="pt")
    with KNNLogitsProcessor(model, store, lmbda=0.95, temperature=0.5) as knn:
        output = knn.generate(**inputs, max_new_tokens=8, do_sample=False)
        trace = knn.trace(output, tokenizer)
    (sequence,) = trace
    assert {token.meaning for token in sequence.tokens} >= {"changed"}
    assert all(token.unlike for token in sequence.tokens[:4])
    assert main_sources(sequence, 5)  # They caused the words all the same.
    trace.show()
    _, legend, *sources = capsys.readouterr().out.splitlines()
    said = "from a sentence unlike this one"
    assert said in legend
    assert any(said in line for line in sources)


@pytest.mark.parametrize("number", [2, 6])
def test_a_word_that_the_end_cuts_is_from_its_sentence(model, tokenizer, store, number):
    inputs = tokenizer("The harbour crane lifts twelve crates", return_tensors="pt")
    with KNNLogitsProcessor(model, store, lmbda=0.95, temperature=0.5) as knn:
        output = knn.generate(**inputs, max_new_tokens=number, do_sample=False)
        (sequence,) = knn.trace(output, tokenizer)
    assert " an hour. Its".startswith(sequence.text)
    assert not any(token.unlike for token in sequence.tokens)


def test_a_special_token_is_no_word_of_a_sentence(model, tokenizer, store):
    ids = [*tokenizer(TEXTS[4])["input_ids"], tokenizer.eos_token_id]
    *tokens, end = explain(model, tokenizer, store, ids, **EVERY)[0].tokens
    assert end.special
    assert all(token.verbatim for token in tokens)


def test_the_trace_says_what_the_passage_has(model, tokenizer, store, tmp_path):
    text = TEXTS[4].replace("weather", "waves")
    trace = explain(model, tokenizer, store, text, **EVERY)
    (found,) = (one.by_memory for one in trace[0].contradictions)
    assert tokenizer.decode(store.passage(found.entry).token) in found.token
    assert 0.0 < found.p < 1.0
    said = "waves: the memory says 'weather' (most words around are the same, by 4)"
    assert said in unescape(to_html(trace))
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace
