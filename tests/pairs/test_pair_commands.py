"""The command line with pairs, as one uses it who has not read how it works."""

import json
import shutil

import pytest
from commands import write_corpus
from conftest import PAIRS, TEXTS

import knn_logits

QUICK = ["--k", "8", "--lmbda", "0.4", "--temperature", "5", "--json"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pairs in each form that they can have."""
    folder = tmp_path_factory.mktemp("corpora")
    write = lambda name, rows: (folder / name).write_text(  # noqa: E731
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    rows = [{"source": source, "target": target} for source, target in PAIRS]
    write("p.jsonl", rows)
    write("dev.jsonl", [{"source": PAIRS[0][0], "target": "Der Kran hebt die Winde.", "id": "x"}])
    write("opus.jsonl", [{"id": str(n), "translation": {"en": source, "de": target}}
                         for n, (source, target) in enumerate(PAIRS)])  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def built(marian, pair_tokenizer, folder, tmp_path_factory):
    """A datastore of the pairs."""
    return knn_logits.build_datastore(
        marian,
        pair_tokenizer,
        knn_logits.read_corpus([str(folder / "p.jsonl")], pairs=True),
        tmp_path_factory.mktemp("built") / "store",
        k=8,
        lmbda=0.4,
        temperature=5.0,
    ).folder


@pytest.fixture(scope="module")
def causal(model_folder, tmp_path_factory):
    """A causal model and its datastore."""
    folder = tmp_path_factory.mktemp("causal")
    return model_folder, write_corpus(folder / "texts.jsonl", TEXTS)


# What works


def test_every_form_of_a_corpus_gives_the_same_datastore(run, marian_folder, folder, tmp_path):
    forms = {
        "p.jsonl": [folder / "p.jsonl"],
        "fields": [
            folder / "opus.jsonl",
            "--source-field", "translation.en", "--target-field", "translation.de",
        ],
    }  # fmt: skip
    stores = []
    for name, corpus in forms.items():
        done = run.good("build", marian_folder, *corpus, "--out", tmp_path / name, *QUICK).json
        assert (done["documents"], done["k"], done["lmbda"]) == (8, 8, 0.4)
        stores.append(knn_logits.Datastore(tmp_path / name))
    for store in stores[1:]:
        assert store.values.tolist() == stores[0].values.tolist()
        assert store.documents.sources(range(8)) == [source for source, _ in PAIRS]
    assert [stores[1].documents[n].metadata for n in range(8)] == [None] * 8


def test_from_a_build_to_answers(run, marian_folder, folder, built, tmp_path):
    for command in ("info", "verify"):
        assert run.good(command, built, "--json").json["ok"]
    sure = ["--k", "1", "--lmbda", "0.99", "--max-new-tokens", "30"]
    words = ("generate", marian_folder, built, "--prompt", PAIRS[0][0])
    said = run.good(*words, "--compare", "--json", "--num-beams", "2", *sure).json
    assert said["text"] == PAIRS[0][1]
    assert said["text_without_knn"] != said["text"]
    assert {near["source"] for token in said["tokens"] for near in token["neighbors"]}
    assert run.good(*words, "--k", "1", "--lmbda", "0.99").out.strip() == PAIRS[0][1]
    assert "⇐" in run.good(*words, "--explain", *sure).out
    explained = run.good(
        "explain", marian_folder, built, PAIRS[3][1], "--source", PAIRS[3][0], "--json"
    ).json
    assert explained["first"] == ""
    assert "".join(token["token"] for token in explained["tokens"]).startswith(" Die Königin")
    more = ["add", marian_folder, built, folder / "dev.jsonl"]
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    more[2] = copy
    assert "1 document added" in run.good(*more).out
    assert "of 8 documents are left" in run.good("remove", copy, "--document", "x").out


def test_numbers_of_an_evaluation(run, marian_folder, folder, built):
    result = run.good(
        "eval", marian_folder, built, folder / "p.jsonl", folder / "dev.jsonl", "--num-beams", "1",
        "--json",
    ).json  # fmt: skip
    assert set(result["perplexity"]) == {"lm", "knn", "interpolated"}
    assert result["translations"]["num_beams"] == 1
    assert set(result["translations"]["knn"]) == {"bleu", "chrf"}
    shown = run.good("eval", marian_folder, built, folder / "dev.jsonl", "--num-beams", "1")
    assert "BLEU" in shown.out
    shown = run.good("eval", marian_folder, built, folder / "dev.jsonl", "--no-bleu")
    assert "BLEU" not in shown.out


# What is refused


def test_options_for_other_models(run, marian_folder, folder, built, causal, tmp_path):
    model, corpus = causal
    out = ["--out", tmp_path / "s", *QUICK]
    build = ["build", marian_folder, folder / "p.jsonl", *out]
    assert "has no language codes" in run.refused(*build, "--source-lang", "en_XX").err
    assert "has no language codes" in run.refused(*build, "--target-lang", "de_DE").err
    assert "remove --concatenate" in run.refused(*build, "--concatenate").err
    for option in ("--source-lang", "--target-lang", "--source-prefix"):
        assert "has no source input" in run.refused("build", model, corpus, *out, option, "en").err
    assert "p.jsonl" in run.refused("build", model, folder / "p.jsonl", *out).err
    assert "pass --source" in run.refused("explain", marian_folder, built, "a b").err
    assert "prompt is empty" in run.refused("generate", marian_folder, built, "--prompt", "").err
    assert (
        "pass --source" in run.refused("explain", marian_folder, built, "a b", "--source", " ").err
    )
    joined = ["--concatenate", "--no-bleu"]
    refused = run.refused("eval", marian_folder, built, folder / "p.jsonl", *joined)
    assert "--concatenate" in refused.err
    assert not (tmp_path / "s").exists()
