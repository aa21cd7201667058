"""A conversation in a terminal: what is written, why, and what a mistaken line does."""

import io
import json
import shutil
import sys

import pytest
from byte_tokens import make_byte_fallback
from conftest import TEXTS, make_gpt2
from gate_cases import random_adaptive
from tuned import write_settings

import knn_logits
from knn_logits import Trace
from knn_logits.engine.tokens import chat_ids
from knn_logits.generation.drafts import Drafter

PROMPT = "When error code E42 appears, open"


@pytest.fixture(scope="module")
def chat_store(build, tmp_path_factory):
    return build(
        TEXTS, tmp_path_factory.mktemp("chat") / "s", k=8, lmbda=0.9, temperature=1.0
    ).folder


@pytest.fixture
def talk(run, model_folder, chat_store, monkeypatch):
    """Types lines into a conversation; what came out."""

    def typed(*lines, options=(), folder=chat_store):
        text = io.StringIO("".join(f"{line}\n" for line in lines))
        text.isatty = lambda: False
        monkeypatch.setattr(sys, "stdin", text)
        arguments = ["chat", model_folder, str(folder), "--max-new-tokens", "24", *options]
        return run(*arguments)

    return typed


def test_a_text_goes_on_as_generate_writes_it(talk, run, model_folder, chat_store):
    done = talk(PROMPT)
    expected = run(
        "generate", model_folder, str(chat_store), "--prompt", PROMPT,
        "--max-new-tokens", "24", "--json",
    )  # fmt: skip
    text = json.loads(expected.out.splitlines()[-1])["text"]
    assert done.code == 0
    assert text in done.out


def test_why_names_the_passage_of_a_word(talk):
    out = talk(PROMPT, "/why cover", "/why 1", "/why").out
    assert "When error code E42 appears" not in out.splitlines()[0]
    assert "»cover«" in out
    assert "by the neighbors" in out
    assert "documents:" in out


def test_the_memory_can_be_switched_off_and_a_document_left_out(talk):
    with_it = talk(PROMPT).out
    assert talk("/knn off", PROMPT).out.splitlines()[1] != with_it.splitlines()[0]
    without = talk("/without 1", PROMPT).out
    assert "without 1" in without
    assert with_it.splitlines()[0] not in without
    again = talk("/without 1", "/with 1", PROMPT).out
    assert with_it.splitlines()[0] in again


def test_settings_change_and_are_said(talk):
    out = talk("/set k 3", "/set lmbda 0.25", "/set tokens 5", "/settings").out
    assert "k 3; lmbda 0.25; temperature 1; tokens 5; the memory is on" in out.splitlines()[-1]


def test_settings_say_that_a_gate_decides(talk, chat_store, tmp_path):
    folder = shutil.copytree(chat_store, tmp_path / "s")
    silent = random_adaptive(lmbda=-99.0, share=-99.0)
    write_settings(knn_logits.Datastore(folder), 8, 0.9, 1.0, silent)
    out = talk(PROMPT, "/why", "/settings", "/set lmbda 0.25", folder=folder).out
    first, second = [line for line in out.splitlines() if "the memory is on" in line]
    assert "lmbda by the gate 'adaptive'" in first
    assert "lmbda 0.25" in second
    # The memory has no part in the answer, which is said below it and by /why.
    assert out.count("nothing near: no passage has a part in these words") == 2
    assert "by the neighbors" not in out


def test_drafts_can_be_switched_off(talk, monkeypatch):
    asked = []
    monkeypatch.setattr(Drafter, "draft", lambda *_: asked.append(1) or [])
    talk(PROMPT, options=["--no-draft"])
    assert not asked
    talk(PROMPT)
    assert asked


def test_traces_are_kept(talk, tmp_path):
    talk(PROMPT, f"/save {tmp_path / 't.json'}", f"/save '{tmp_path / 'a page.html'}'")
    trace = Trace.load(tmp_path / "t.json")
    assert trace[0].prompt == PROMPT
    page = (tmp_path / "a page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "cover" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/frob", "/frob is not a command; /help lists the commands"),
        ("/why", "no answer from the memory yet"),
        ("/save", "has other arguments"),
        ("/set colour red", "/set takes k, lmbda, temperature, suffix_weight, tokens, not"),
        ("/set lmbda 3", "between 0 and 1"),
        ("/knn maybe", "/knn on or /knn off"),
        (
            "/without chapter 9",
            "none of the datastores has a document with the id, title or uri 'chapter 9'",
        ),
        ("/why 'x", "check its quotation marks"),
        ("a \udcff byte", "is not valid UTF-8 and was ignored"),
        ("word " * 300, "start over with /new"),
    ],
)
def test_a_mistaken_line_is_told_and_the_conversation_goes_on(talk, line, message):
    done = talk(line, PROMPT, "/quit", "never read")
    assert done.code == 0
    assert message in done.err
    assert "Traceback" not in done.err
    assert "cover" in done.out


def test_what_a_word_is_not_in_the_answer(talk):
    err = talk(PROMPT, "/why 999", "/why submarine").err
    assert "only 11 words, not 999" in err
    assert "the answer does not contain 'submarine'" in err
    assert "the answer does not contain '²'" in talk(PROMPT, "/why ²").err


def test_a_byte_that_is_not_utf8_ends_nothing(run, model_folder, chat_store, monkeypatch):
    lines = f"\n{PROMPT}\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe" + lines), "utf-8"))
    done = run.good("chat", model_folder, str(chat_store), "--max-new-tokens", "24")
    assert "is not valid UTF-8" in done.err
    assert "cover" in done.out


def test_a_file_whose_name_no_system_has(talk):
    done = talk(PROMPT, "/save a\0b", PROMPT)
    assert (done.code, done.out.count("cover")) == (0, 2)
    assert "cannot be written" in done.err


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def converse(run, model_folder, chat_store, tmp_path, monkeypatch):
    """Types lines into a conversation with a model that has a chat template."""

    def typed(lines, *options):
        folder = shutil.copytree(model_folder, tmp_path / "chatty", dirs_exist_ok=True)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run.good("chat", folder, chat_store, "--max-new-tokens", "3", *options)

    return typed


def test_a_chat_template_makes_it_a_conversation(converse, monkeypatch):
    seen = []

    def noted(tokenizer, messages, **settings):
        seen.append([one["role"] for one in messages])
        return chat_ids(tokenizer, messages, **settings)

    monkeypatch.setattr("knn_logits.engine.tokens.chat_ids", noted)
    converse("/knn off\nThe crane\nWhy?\n/new\nThe pump\n")
    assert seen == [["user"], ["user", "assistant", "user"], ["user"]]
    seen.clear()
    # A message that is too long for the model is not part of what follows.
    done = converse("/knn off\n" + "word " * 300 + "\nThe crane\n")
    assert "shorten the text" in done.err
    assert seen == [["user"], ["user"]]


@pytest.mark.parametrize("off", [["--continue"], []])
def test_a_text_is_continued_without_the_chat_template(
    converse, run, model_folder, chat_store, tmp_path, off
):
    done = converse(
        f"{'' if off else '/ask off' + chr(10)}{PROMPT}\n/save {tmp_path / 't'}\n", *off
    )
    expected = run.good(
        "generate", model_folder, chat_store, "--prompt", PROMPT, "--max-new-tokens", 3, "--json"
    ).json["text"]
    (sequence,) = Trace.load(tmp_path / "t")
    assert (sequence.prompt, sequence.text) == (PROMPT, expected)
    assert expected in done.out


def test_a_text_that_follows_a_cut_character_is_whole(run, tmp_path):
    """Llama's tokenizer has a token for each byte of a rare character."""
    tokenizer, model = make_byte_fallback(), make_gpt2()
    text = "the sea 東京 is far. " * 8
    store = knn_logits.build_datastore(
        model, tokenizer, [text], tmp_path / "s", k=4, index="exact", calibrate=False
    )
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    for tokens in range(1, 9):
        options = ["--max-new-tokens", tokens, "--lmbda", 1.0, "--temperature", 0.01, "--json"]
        done = run("generate", tmp_path / "m", store.folder, "--prompt", "the sea 東", *options)
        written = "".join(one["token"] for one in done.json["tokens"])
        assert written.startswith("京"[: tokens // 3])
        assert done.json["text"].rstrip("\ufffd") == written.rstrip("\ufffd")


def test_generate_streams_and_keeps_its_trace(run, model_folder, chat_store, tmp_path):
    arguments = ["generate", model_folder, str(chat_store), "--prompt", PROMPT]
    done = run(*arguments, "--save", tmp_path / "t.json", "--html", tmp_path / "t.html")
    trace = Trace.load(tmp_path / "t.json")
    assert done.out == f"{PROMPT}{trace[0].text}\n"
    assert "<!doctype html>" in (tmp_path / "t.html").read_text()


@pytest.mark.parametrize("command", ["generate", "explain"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    run, model_folder, chat_store, tmp_path, monkeypatch, command
):
    words = [PROMPT] if command == "explain" else ["--prompt", PROMPT]
    for option in ("--html", "--save"):
        bad = run(command, model_folder, chat_store, *words, option, tmp_path / "no" / "t")
        assert (bad.code, bad.out) == (1, "")
        assert "its folder does not exist" in bad.err

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Trace, "save", full)
    late = run.refused(
        command, model_folder, chat_store, *words, "--save", tmp_path / "t", "--json"
    )
    assert "No space left on device" in late.err
    assert late.json["tokens"]


def test_explain_reads_a_file(run, model_folder, chat_store, tmp_path):
    (tmp_path / "text.txt").write_text(TEXTS[1], encoding="utf-8")
    (tmp_path / "other.txt").write_bytes(TEXTS[1].encode("utf-16"))
    arguments = ["explain", model_folder, str(chat_store)]
    one, other = (run(*arguments, text, "--json").out for text in (tmp_path / "text.txt", TEXTS[1]))
    assert one == other
    bad = run.refused(*arguments, tmp_path / "other.txt")
    assert "is not valid UTF-8" in bad.err
