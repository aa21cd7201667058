"""Every command refuses a wrong setting, by its name, before it loads a model."""

import sys

import pytest
from commands import write_corpus

from knn_logits.cli.app import command as command_line

# Each command's arguments; MODEL is a folder that cannot be loaded.
CALLS = {
    "build": ("MODEL", "TEXT", "--out", "OUT"),
    "add": ("MODEL", "STORE", "TEXT"),
    "sync": ("MODEL", "STORE", "TEXT"),
    "index": ("STORE",),
    "generate": ("MODEL", "STORE", "--prompt", "x"),
    "chat": ("MODEL", "STORE"),
    "explain": ("MODEL", "STORE", "a text"),
    "eval": ("MODEL", "STORE", "TEXT"),
    "tune": ("MODEL", "STORE", "TEXT"),
    "serve": ("MODEL", "STORE"),
    "import": ("MODEL", "STORE", "--out", "OUT"),
}
WRONG = {
    "--preset": ("papers", "preset must be one of default, paper"),
    "--infini-gram": ("1.5", "infini_gram must lie between 0 and 1"),
    "--without": ("nothing.txt", "none of the datastores has a document"),
    "--shards": ("2", "--shards has no effect without --ray"),
    "--keys-dtype": ("int8", "must be one of float16, float32"),
    "--metric": ("manhattan", "metric must be one of l2, ip, cosine"),
    "--window": ("1", "window must be an integer of at least 2"),
    "--batch-tokens": ("0", "batch_tokens must be an integer"),
    "--lmbda": ("2", "lmbda must lie between 0 and 1"),
}


def options_of(command):
    """A command's options that take a value or are a switch, without those of its own."""
    return {option.opts[0] for option in command_line.commands[command].params}


# Each option with the first command that has it, and each command with the last of its options.
CASES = {
    *((next(name for name in CALLS if option in options_of(name)), option) for option in WRONG),
    *((name, [one for one in WRONG if one in options_of(name)][-1]) for name in CALLS),
}


@pytest.mark.parametrize(("command", "option"), sorted(CASES))
def test_a_wrong_setting_is_named_and_not_the_model(run, store, tmp_path, command, option):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "text.txt").write_text("A text that is read.")
    places = {
        "MODEL": tmp_path / "model",
        "STORE": store.folder,
        "TEXT": tmp_path / "text.txt",
        "OUT": tmp_path / "out",
    }
    value, message = WRONG[option]
    result = run(command, *(places.get(word, word) for word in CALLS[command]), option, value)
    assert (result.code, result.out) == (1, "")
    assert message in result.line
    assert "the model" not in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("build", "MODEL", "CORPUS", "--out", "OUT"),
        ("generate", "MODEL", "STORE", "--prompt", "The"),
        ("serve", "MODEL", "STORE"),
    ],
)
def test_without_ray_it_says_how_to_install_it(
    run, model_folder, store, tmp_path, monkeypatch, words
):
    monkeypatch.setitem(sys.modules, "ray", None)
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    places = {"MODEL": model_folder, "STORE": store.folder, "CORPUS": corpus, "OUT": tmp_path / "s"}
    answer = run.refused(*(places.get(word, word) for word in words), "--ray", "auto")
    assert "Ray is not installed: pip install 'knn-logits[ray]'" in answer.err
    assert len(answer.err.strip().splitlines()) <= 3
    assert not (tmp_path / "s").exists()


def test_usage_errors_exit_2(run):
    assert run("generate").code == 2
    assert run("nonsense").code == 2
    assert run("build", "--k", "many", "m", "c", "--out", "s").code == 2
    without = run("build", "m", "c")
    assert (without.code, "--out" in without.err) == (2, True)
    assert run("generate", "m", "s", "--prompt", "a", "--max-new-tokens", 0).code == 2
    assert run("index", "s", "--threads", 0).code == 2


def test_summaries_fit_a_terminal(run):
    out = run("--help").out
    commands = out[out.index("Commands:") :]
    assert all(f"  {name} " in commands for name in command_line.commands)
    assert "..." not in commands
