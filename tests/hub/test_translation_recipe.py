"""The commands of a translation recipe, run from one end to the other on a small random T5."""

import json
import shlex

import pytest
import torch
from conftest import PAIRS

from knn_logits.hub.catalog import recipe


@pytest.fixture(scope="module")
def t5_folder(pair_tokenizer, tmp_path_factory):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=384,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=1,
        eos_token_id=0,
        decoder_start_token_id=1,
    )
    folder = tmp_path_factory.mktemp("models") / "t5"
    T5ForConditionalGeneration(config).eval().save_pretrained(folder)
    pair_tokenizer.save_pretrained(folder)
    return folder


def test_the_commands_of_the_t5_recipe(t5_folder, run, tmp_path):
    """Another model, corpus and size of index; every option else is the recipe's."""
    rows = [{"translation": {"en": source, "ro": target}} for source, target in PAIRS]
    corpus = tmp_path / "pairs.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    build, evaluate, push = recipe("wmt16-en-ro-t5-small").commands
    store = tmp_path / "store"
    small = {
        "google-t5/t5-small": str(t5_folder),
        "hf:wmt/wmt16:ro-en:train": str(corpus),
        "hf:wmt/wmt16:ro-en:validation": str(corpus),
        "wmt16-en-ro-t5-small": str(store),
        "IVF4096,PQ64": "IVF4,PQ4x4",
    }

    def in_small(command):
        words = shlex.split(command)
        assert words[0] == "knn-logits"
        return [small.get(word, word) for word in words[1:]]

    built = run.good(*in_small(build), "--json")
    assert built.json["documents"] == len(PAIRS)
    assert (built.json["k"], built.json["lmbda"], built.json["temperature"]) == (32, 0.25, 50.0)
    content = json.loads((store / "datastore.json").read_text(encoding="utf-8"))
    assert content["pairs"]["source_prefix"] == "translate English to Romanian: "

    run.good("generate", t5_folder, store, "--prompt", PAIRS[0][0], "--explain")

    found = run.good(*in_small(evaluate), "--json")
    (translations,) = found.json["translations"]
    assert translations["num_beams"] == 1
    assert 0.0 <= translations["knn"]["bleu"]["score"] <= 100.0

    run.good(*in_small(push), "--dry-run")
