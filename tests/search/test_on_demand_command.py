"""A datastore without keys from the command line."""

import json
from pathlib import Path

from conftest import TEXTS

PROMPT = "When error code E42 appears, open the"


def test_the_command_line(run, model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS))
    store, name = str(tmp_path / "store"), str(tmp_path / "model")
    corpus = str(tmp_path / "texts.txt")
    given = ["--no-keys", "--window", "64", "--json"]
    planned = json.loads(run("build", name, corpus, *given, "--dry-run").out)
    made = json.loads(run("build", name, corpus, "--out", store, *given).out)
    assert made["keys"] is False
    assert made["index"] == "on-demand"
    size = sum(one.stat().st_size for one in Path(store).iterdir())
    assert 8 * made["entries"] < planned["bytes"] < size
    assert "none stored" in run("info", store).out
    assert json.loads(run("verify", store, "--json").out)["ok"]
    text = json.loads(
        run("generate", name, store, "--prompt", PROMPT, "--max-new-tokens", "8", "--json").out
    )
    assert text["tokens"]
    refused = run.refused("generate", name, store, "--prompt", PROMPT, "--retomaton")
    assert "on demand: rebuild it without --no-keys" in refused.line
    refused = run.refused(
        "build", name, corpus, "--out", store + "2", *given, "--index", "IVF4,Flat"
    )
    assert "without keys there is no index" in refused.err
