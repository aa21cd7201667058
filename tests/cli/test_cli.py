"""The command line as a user meets it: results, JSON, and one line for each mistake."""

import pytest
from commands import write_corpus
from conftest import TEXTS


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "texts.jsonl")


@pytest.fixture
def built(run, model_folder, corpus, tmp_path):
    store = tmp_path / "store"
    result = run.good(
        "build", model_folder, corpus, "--out", store, "--k", 16, "--lmbda", 0.9,
        "--temperature", 0.5, "--window", 64, "--stride", 32, "--json",
    )  # fmt: skip
    return store, result


def test_build_reports_what_it_made(built):
    _, result = built
    assert len(result.out.splitlines()) == 1
    content = result.json
    assert content["documents"] == len(TEXTS)
    assert content["entries"] > 100
    assert content["entries_per_second"] > 0
    assert content["seconds"] > 0
    assert (content["k"], content["lmbda"], content["temperature"]) == (16, 0.9, 0.5)
    assert content["recall"] == 1.0


def test_generate_json(run, built, model_folder):
    store, _ = built
    result = run.good(
        "generate", model_folder, store, "--prompt", "The harbour crane", "--compare", "--json",
        "--max-new-tokens", 10,
    )  # fmt: skip
    assert len(result.out.splitlines()) == 1
    content = result.json
    assert content["text"].startswith(" lifts twelve")
    assert content["text_without_knn"] != content["text"]
    assert "".join(token["token"] for token in content["tokens"]) == content["text"]
    first = content["tokens"][0]
    assert set(first) >= {"token", "p", "p_lm", "p_knn", "lmbda", "influence", "neighbors"}
    assert first["neighbors"][0]["document"] == "d0"
    assert first["neighbors"][0]["title"] == "Title 0"
    assert "harbour crane lifts" in first["neighbors"][0]["snippet"]


def test_generate_for_people(run, built, model_folder):
    store, _ = built
    result = run.good(
        "generate", model_folder, store, "--prompt", "The harbour crane", "--compare", "--explain",
        "--max-new-tokens", 8, "--num-beams", 2,
    )  # fmt: skip
    assert "--- without kNN" in result.out
    assert "--- with kNN" in result.out
    assert "by Title 0" in result.out


def test_the_seed_decides_a_sample(run, built, model_folder):
    store, _ = built
    call = ("generate", model_folder, store, "--prompt", "The", "--sample", "--json")
    one, same, other = (run(*call, "--seed", seed).json["text"] for seed in (1, 1, 2))
    assert one == same
    assert one != other


def one_line(result, *parts):
    assert result.code == 1, (result.code, result.out, result.err)
    lines = [line for line in result.err.splitlines() if line.startswith("knn-logits: ")]
    assert "Traceback" not in result.err
    for part in parts:
        assert part in lines[-1], lines


def test_what_is_no_store_or_no_model(run, built, model_folder, tmp_path):
    store, _ = built
    one_line(run("info", tmp_path / "nowhere"), "nowhere")
    (tmp_path / "folder").mkdir()
    one_line(run("info", tmp_path / "folder"), "is not a datastore")
    one_line(run("generate", tmp_path / "folder", store, "--prompt", "a"), "cannot load the model")
    one_line(run("generate", "no/such-model", store, "--prompt", "a"), "no/such-model")
    one_line(run("generate", model_folder, store, "--prompt", ""), "prompt")
    call = ("generate", model_folder, store, "--prompt")
    one_line(run(*call, "a", "--max-new-tokens", 300), "context of 256")
    one_line(run(*call, "a " * 300), "context of 256")
    one_line(run(*call, "a\udcff"), "UTF-8")
    one_line(run(*call, "a", "--top-p", 0.5), "--sample")
    one_line(run(*call, "a", "--sample", "--top-p", 2), "--top-p")
    one_line(run(*call, "a", "--sample", "--sampling-temperature", 0), "--sampling-temperature")
    one_line(run("info", "x" * 400), "x")


def test_a_model_without_a_decoder(run, tokenizer, corpus, tmp_path):
    from transformers import BertConfig, BertForMaskedLM, ViTConfig, ViTModel

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(vocab_size=384, **small)).save_pretrained(tmp_path / "bert")
    ViTModel(ViTConfig(image_size=32, patch_size=16, **small)).save_pretrained(tmp_path / "vit")
    for name in ("bert", "vit"):
        tokenizer.save_pretrained(tmp_path / name)
        result = run("build", tmp_path / name, corpus, "--out", tmp_path / f"s-{name}")
        one_line(result, "causal" if name == "vit" else "no known feed-forward network")


def test_a_store_inside_its_corpus_is_no_document(run, model_folder, tmp_path):
    (tmp_path / "a.txt").write_text(TEXTS[0])
    for more in ([], ["--overwrite"]):
        result = run("build", model_folder, tmp_path, "--out", tmp_path / "store", "--json", *more)
        assert result.json["documents"] == 1
        assert result.json["skipped"] == 0


def test_the_version(run):
    assert run("--version").out.startswith("knn-logits ")
