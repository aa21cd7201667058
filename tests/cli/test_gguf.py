"""The commands on a GGUF file: every one takes it where it takes a folder of transformers."""

import json

import missing
import pytest
from commands import write_corpus
from conftest import TEXTS
from gguf_files import tiny, write_gguf

PROMPT = TEXTS[0][:40]


@pytest.fixture(scope="session", autouse=True)
def _llama_cpp():
    missing.llama_cpp()


@pytest.fixture(scope="module")
def gguf_model(tokenizer, tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny("llama"), tokenizer)


@pytest.fixture
def store(run, gguf_model, tmp_path):
    corpus, folder = write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "store"
    done = run.good("build", gguf_model, corpus, "--out", folder, "--json")
    assert done.json["entries"] > 200
    return folder


def test_a_datastore_is_built_and_asked(run, gguf_model, store, tmp_path):
    generate = ("generate", gguf_model, store, "--prompt", PROMPT, "--max-new-tokens", "12")
    written = run.good(*generate, "--lmbda", "0.9", "--json", "--compare").json
    assert TEXTS[0][40:].startswith(written["text"][:10])
    assert written["text_without_knn"] != written["text"]
    assert written["tokens"][0]["documents"][0]["document"] == "d0"
    plain = run.good(*generate, "--lmbda", "0.9", "--no-draft", "--json").json
    assert plain["text"] == written["text"]
    assert plain["passes"] > written["passes"]
    # The folder of the file is as good as the file.
    explained = run.good("explain", gguf_model.parent, store, TEXTS[0], "--json").json
    assert len(explained["tokens"]) > 10
    (tmp_path / "text.txt").write_text(TEXTS[1])
    scored = run.good("eval", gguf_model, store, tmp_path / "text.txt", "--json").json
    assert scored["perplexity"]["interpolated"] < scored["perplexity"]["lm"]
    assert "llama.cpp" in run.good("info", store).out


def test_documents_come_and_go(run, gguf_model, store, tmp_path):
    more = write_corpus(tmp_path / "more.jsonl", ["The lock keeper opens at eight."])
    assert " added in " in run.good("add", gguf_model, store, more).out
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXTS[2])
    assert ": 1 added, " in run.good("sync", gguf_model, store, folder, "--force").out


def test_bad_files_are_one_line(run, gguf_model, store, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_model.read_bytes()[:5000])
    ask = ("generate", "--prompt", "x")
    assert "llama.cpp cannot read" in run.refused(*ask, broken, store).line
    assert "there is no file" in run.refused(*ask, tmp_path / "none.gguf", store).line
    wrong = run.refused(*ask, gguf_model, store, "--dtype", "bfloat16")
    assert "has its own precision" in wrong.line
    full = run.refused("generate", gguf_model, store, "--prompt", PROMPT, "--max-new-tokens", "600")
    assert "context of 512" in full.line


def test_another_tokenizer_is_refused(run, store, tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    other = backend.from_str(backend.to_str())
    state = json.loads(other.to_str())
    state["model"]["merges"] = state["model"]["merges"][:-1]
    words = PreTrainedTokenizerFast(
        tokenizer_object=backend.from_str(json.dumps(state)), eos_token="<|endoftext|>"
    )
    words.add_tokens(["<|more|>"])
    file = write_gguf(tmp_path / "other.gguf", tiny("llama", len(words)), words)
    refused = run.refused("generate", file, store, "--prompt", "x")
    assert "a different tokenizer" in refused.line
