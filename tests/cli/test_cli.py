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


def test_what_is_no_store_or_no_model(run, built, model_folder, tmp_path):
    store, _ = built
    assert "nowhere" in run.refused("info", tmp_path / "nowhere").err
    (tmp_path / "folder").mkdir()
    assert "is not a datastore" in run.refused("info", tmp_path / "folder").err
    assert (
        "cannot load the model"
        in run.refused("generate", tmp_path / "folder", store, "--prompt", "a").err
    )
    assert "no/such-model" in run.refused("generate", "no/such-model", store, "--prompt", "a").err
    assert "prompt" in run.refused("generate", model_folder, store, "--prompt", "").err
    call = ("generate", model_folder, store, "--prompt")
    assert "context of 256" in run.refused(*call, "a", "--max-new-tokens", 300).err
    assert "context of 256" in run.refused(*call, "a " * 300).err
    assert "UTF-8" in run.refused(*call, "a\udcff").err
    assert "--sample" in run.refused(*call, "a", "--top-p", 0.5).err
    assert "--top-p" in run.refused(*call, "a", "--sample", "--top-p", 2).err
    assert (
        "--sampling-temperature"
        in run.refused(*call, "a", "--sample", "--sampling-temperature", 0).err
    )


def test_a_store_inside_its_corpus_is_no_document(run, model_folder, tmp_path):
    (tmp_path / "a.txt").write_text(TEXTS[0])
    for more in ([], ["--overwrite"]):
        result = run("build", model_folder, tmp_path, "--out", tmp_path / "store", "--json", *more)
        assert result.json["documents"] == 1
        assert result.json["skipped"] == 0


def test_the_version(run):
    assert run("--version").out.startswith("knn-logits ")
