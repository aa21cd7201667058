"""What `build` says: what a dry run counts, a summary and a command that works afterwards."""

import copy
import itertools
import json
import shlex
from types import SimpleNamespace

import pytest
from conftest import TEXTS

from knn_logits import Datastore


@pytest.fixture
def folder(tmp_path):
    """Eight texts, and files of which each is passed over for a reason."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"d{number}.txt").write_text(text)
    for number in range(7):
        (folder / f"e{number}.txt").write_text(" ")
    (folder / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    return folder


@pytest.mark.parametrize("options", [(), ("--index", "IVF4,SQ8"), ("--no-keys", "--concatenate")])
def test_a_dry_run_says_what_comes_and_writes_nothing(
    run, model_folder, folder, tmp_path, monkeypatch, options
):
    out = tmp_path / "store"
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr("knn_logits.building.builder.time", clock)
    said = run.good("build", model_folder, folder, "--dry-run", "--json", *options).json
    assert not out.exists()
    made = run.good("build", model_folder, folder, "--out", out, "--no-calibrate", *options)
    assert f"{said['entries']:,} entries of {len(TEXTS)} documents" in made.out
    assert (said["documents"], said["skipped"]) == (len(TEXTS), 8)
    store = Datastore(out)
    sizes = {file.name: file.bytes for file in store.manifest.files}
    counted = [size for name, size in sizes.items() if not name.startswith(("doc", "checks"))]
    assert said["bytes"] == pytest.approx(sum(counted), rel=0.05, abs=256)
    # A second for the keys that were timed: all of this small text.
    assert said["seconds"] == (0 if "--no-keys" in options else 1)
    assert said["tokens"] == store.manifest.tokens
    words = run("build", model_folder, folder, "--out", tmp_path / "other", "--dry-run")
    assert "nothing was written" in words.out
    assert not (tmp_path / "other").exists()


def test_a_dry_run_times_the_first_keys_of_a_long_document(
    run, model_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("knn_logits.cli.bars._INTERVAL", 0.0)
    (tmp_path / "long.txt").write_text(" ".join(TEXTS * 50))
    passes = ("--window", 32, "--batch-tokens", 64)
    result = run.good("build", model_folder, tmp_path, "--dry-run", "--json", *passes)
    timed = [line for line in result.err.splitlines() if "timing the first keys" in line]
    assert timed[-1].endswith(": 80 of 80")
    assert result.json["entries"] > 5000


def test_what_was_passed_over_is_summed_up_and_the_next_command_is_a_chat(
    run, model_folder, folder, tmp_path
):
    store = tmp_path / "a store"
    result = run.good("build", model_folder, folder, "--out", store, "--no-calibrate")
    named = [line for line in result.err.splitlines() if "skipped" in line]
    assert len([line for line in named if line.endswith(": empty")]) == 5
    assert "8 skipped: 7 × empty; 1 × binary" in result.out.splitlines()
    (line,) = [one for one in result.out.splitlines() if one.startswith("next: ")]
    assert shlex.split(line)[1:] == ["knn-logits", "chat", str(model_folder), str(store)]


def test_a_small_folder_is_told_that_nothing_was_calibrated(run, model_folder, folder, tmp_path):
    for file in sorted(folder.glob("d*"))[2:]:
        file.unlink()
    result = run("build", model_folder, folder, "--out", tmp_path / "store")
    assert "settings (not calibrated): k 1024, λ 0.25, τ 10" in result.out
    assert "gate for λ: adaptive: " in result.out


def test_what_a_build_cannot_read_or_write_is_said_before_the_model_is_loaded(
    run, model_folder, folder, tmp_path, monkeypatch
):
    def never(*_):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("knn_logits.cli.loading.RunOptions.load", never)
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("")
    for corpus in ("empty", "blank.txt"):
        done = run.refused("build", model_folder, tmp_path / corpus, "--out", tmp_path / "s")
        assert f"{corpus}: no readable document" in done.err


def test_the_field_of_the_text_is_named(run, model_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    row = {"article": {"body": "Die Königin gründete eine Stadt."}, "id": "q", "title": "Stadt"}
    rows.write_text(json.dumps(row))
    run.good("build", model_folder, rows, "--out", tmp_path / "s", "--text-field", "article.body")
    document = Datastore(tmp_path / "s").documents[0]
    assert (document.id, document.title) == ("q", "Stadt")
    wrong = run.refused("add", model_folder, tmp_path / "s", rows)
    assert 'no field "text" among article, id, title; --text-field names a field' in wrong.err


@pytest.mark.parametrize("began", ["float16", "float32"])
def test_an_unfinished_build_goes_on_in_its_own_precision(
    run, model, tokenizer, folder, tmp_path, monkeypatch, began
):
    """Whatever is fast on the processor of the second run."""
    copy.deepcopy(model).half().save_pretrained(tmp_path / "half")
    tokenizer.save_pretrained(tmp_path / "half")
    build = ("build", tmp_path / "half", folder, "--out", tmp_path / "store")

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("knn_logits.building.builder.unrepeated_ngram", stop)
        assert "to resume" in run(*build, "--dtype", began).err
    monkeypatch.setattr("knn_logits.engine.forward.multiplies_in", lambda _: began == "float32")
    result = run.good(*build)
    said = f"the model runs in {began}, as in the unfinished job" in result.err
    assert said == (began == "float32")  # the model's own precision is not named
    assert Datastore(tmp_path / "store").manifest.model.dtype == began
    assert "continuing the unfinished build" in result.err


def test_every_command_takes_the_precision_of_the_datastore(
    run, model, tokenizer, folder, tmp_path, monkeypatch
):
    copy.deepcopy(model).half().save_pretrained(tmp_path / "half")
    tokenizer.save_pretrained(tmp_path / "half")
    store = tmp_path / "store"
    build = ("build", tmp_path / "half", folder, "--no-calibrate", "--out")
    run.good(*build, store, "--dtype", "float32")
    monkeypatch.setattr("knn_logits.engine.forward.multiplies_in", lambda _: True)
    (folder / "more.txt").write_text("The pump of the ferry stands behind the winch.")
    for command in (
        ("add", tmp_path / "half", store, folder / "more.txt"),
        ("sync", tmp_path / "half", store, folder),
        ("generate", tmp_path / "half", store, "--prompt", "The pump", "--max-new-tokens", 2),
        ("explain", tmp_path / "half", store, "The pump of the ferry"),
        ("ask", tmp_path / "half", store, "Where is the pump?"),
        ("eval", tmp_path / "half", store, folder / "more.txt", "--allow-overlap"),
        ("tune", tmp_path / "half", store, folder / "more.txt", "--allow-overlap"),
    ):
        result = run.good(*command)
        assert "the model runs in float32, as in the datastore" in result.err
        assert "differ by" not in result.err


def test_a_datastore_in_an_emulated_precision_slows_no_command(
    run, model, tokenizer, folder, tmp_path, monkeypatch
):
    """All commands choose as `build` does, so that the keys of one's own datastore are the same."""
    copy.deepcopy(model).bfloat16().save_pretrained(tmp_path / "half")
    tokenizer.save_pretrained(tmp_path / "half")
    stores = tmp_path / "elsewhere", tmp_path / "here"
    build = ("build", tmp_path / "half", folder, "--no-calibrate", "--out")
    run.good(*build, stores[0], "--dtype", "bfloat16")
    monkeypatch.setattr("knn_logits.engine.forward.multiplies_in", lambda _: False)
    for command in (
        (*build, stores[1]),
        ("explain", tmp_path / "half", *stores, "The pump of the ferry"),
        ("add", tmp_path / "half", stores[0], folder),
    ):
        result = run.good(*command)
        assert "the model runs in float32, since this processor" in result.err
        assert "differ by" not in result.err
