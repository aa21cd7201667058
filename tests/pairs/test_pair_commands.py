"""The command line with pairs, as one uses it who has not read how it works."""

import json
import shutil

import pytest
from commands import write_corpus
from conftest import PAIRS, TEXTS

import knn_logits

QUICK = ["--k", "8", "--lmbda", "0.4", "--temperature", "5", "--json"]


@pytest.fixture
def good(run):
    return run.good


@pytest.fixture
def refused(run):
    """Runs what must fail in one clear line, and returns the line."""

    def fail(*args):
        result = run(*args)
        assert (result.code, result.out) == (1, ""), result.out
        said = [line for line in result.err.splitlines() if line.startswith("knn-logits: ")]
        assert "unexpected" not in result.err
        assert "Traceback" not in result.err
        return said[-1]

    return fail


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


def test_every_form_of_a_corpus_gives_the_same_datastore(good, marian_folder, folder, tmp_path):
    forms = {
        "p.jsonl": [folder / "p.jsonl"],
        "fields": [
            folder / "opus.jsonl",
            "--source-field", "translation.en", "--target-field", "translation.de",
        ],
    }  # fmt: skip
    stores = []
    for name, corpus in forms.items():
        done = good("build", marian_folder, *corpus, "--out", tmp_path / name, *QUICK).json
        assert (done["documents"], done["k"], done["lmbda"]) == (8, 8, 0.4)
        stores.append(knn_logits.Datastore(tmp_path / name))
    for store in stores[1:]:
        assert store.values.tolist() == stores[0].values.tolist()
        assert store.documents.sources(range(8)) == [source for source, _ in PAIRS]
    assert [stores[1].documents[n].metadata for n in range(8)] == [None] * 8


def test_from_a_build_to_answers(good, marian_folder, folder, built, tmp_path):
    for command in ("info", "verify"):
        assert good(command, built, "--json").json["ok"]
    sure = ["--k", "1", "--lmbda", "0.99", "--max-new-tokens", "30"]
    said = good("generate", marian_folder, built, "--prompt", PAIRS[0][0], "--compare", "--json",
                "--num-beams", "2", *sure).json  # fmt: skip
    assert said["text"] == PAIRS[0][1]
    assert said["text_without_knn"] != said["text"]
    assert {near["source"] for token in said["tokens"] for near in token["neighbors"]}
    shown = good(
        "generate", marian_folder, built, "--prompt", PAIRS[0][0], "--k", "1", "--lmbda", "0.99"
    )
    assert shown.out.strip() == PAIRS[0][1]
    shown = good("generate", marian_folder, built, "--prompt", PAIRS[0][0], "--explain", *sure)
    assert "⇐" in shown.out
    explained = good(
        "explain", marian_folder, built, PAIRS[3][1], "--source", PAIRS[3][0], "--json"
    ).json
    assert explained["first"] == ""
    assert "".join(token["token"] for token in explained["tokens"]).startswith(" Die Königin")
    more = ["add", marian_folder, built, folder / "dev.jsonl"]
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    more[2] = copy
    assert "1 document added" in good(*more).out
    assert "of 8 documents are left" in good("remove", copy, "--document", "x").out


def test_numbers_of_an_evaluation(good, marian_folder, folder, built):
    result = good(
        "eval", marian_folder, built, folder / "p.jsonl", folder / "dev.jsonl", "--num-beams", "1",
        "--json",
    ).json  # fmt: skip
    assert set(result["perplexity"]) == {"lm", "knn", "interpolated"}
    assert result["translations"]["num_beams"] == 1
    assert set(result["translations"]["knn"]) == {"bleu", "chrf"}
    shown = good("eval", marian_folder, built, folder / "dev.jsonl", "--num-beams", "1")
    assert "BLEU" in shown.out
    shown = good("eval", marian_folder, built, folder / "dev.jsonl", "--no-bleu")
    assert "BLEU" not in shown.out


# What is refused


def test_options_for_other_models(refused, marian_folder, folder, built, causal, tmp_path):
    model, corpus = causal
    out = ["--out", tmp_path / "s", *QUICK]
    build = ["build", marian_folder, folder / "p.jsonl", *out]
    assert "has no language codes" in refused(*build, "--source-lang", "en_XX")
    assert "has no language codes" in refused(*build, "--target-lang", "de_DE")
    assert "remove --concatenate" in refused(*build, "--concatenate")
    for option in ("--source-lang", "--target-lang", "--source-prefix"):
        assert "has no source input" in refused("build", model, corpus, *out, option, "en")
    assert "p.jsonl" in refused("build", model, folder / "p.jsonl", *out)
    assert "pass --source" in refused("explain", marian_folder, built, "a b")
    assert "prompt is empty" in refused("generate", marian_folder, built, "--prompt", "")
    assert "pass --source" in refused("explain", marian_folder, built, "a b", "--source", " ")
    line = refused("eval", marian_folder, built, folder / "p.jsonl", "--concatenate", "--no-bleu")
    assert "--concatenate" in line
    assert not (tmp_path / "s").exists()
