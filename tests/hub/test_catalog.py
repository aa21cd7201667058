"""The recipes that come with the package."""

import shlex

import pytest

from knn_logits.cli.app import command as command_line
from knn_logits.corpus.hub import HUB_PREFIX
from knn_logits.errors import ConfigError
from knn_logits.hub.catalog import parse, recipe, recipes
from knn_logits.index.choice import choose_lists
from knn_logits.store.hub_client import hub_name

ALL = recipes()


def test_the_datastores_that_the_project_means_to_publish():
    names = {one.name for one in ALL}
    assert {f"wikitext103-{size}" for size in ("distilgpt2", "gpt2", "gpt2-medium", "gpt2-large")}
    assert {"wmt16-en-ro-t5-small", "wmt16-en-ro-t5-base", "peps-qwen3-0.6b"} < names
    assert recipe("wikitext103-gpt2") == recipe("knn-logits/wikitext103-gpt2")
    with pytest.raises(ConfigError, match="the catalog has no recipe 'x'; choose one of"):
        recipe("x")


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_recipe(one):
    assert hub_name(one.repo) is not None
    assert one.corpus.startswith(HUB_PREFIX) or "/" in one.corpus
    expected = one.expected
    assert expected.key_bytes % (2 * expected.entries) == 0
    assert expected.download_bytes == expected.index_bytes + 4 * (expected.entries + 1) or (
        expected.entries % 1000 == 0
    )
    assert choose_lists(expected.entries) >= 64
    assert one.published
    assert any("push" in command and one.repo in command for command in one.commands)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_its_commands_are_those_of_the_command_line(one):

    commands = command_line.commands
    for line in one.commands:
        words = shlex.split(line)
        # `eval` is checked once this release has it.
        if words[0] != "knn-logits" or words[1] not in commands:
            continue
        known = {name for option in commands[words[1]].params for name in option.opts}
        known |= {name for option in commands[words[1]].params for name in option.secondary_opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_a_recipe_that_is_none():
    with pytest.raises(ConfigError, match="the recipe x cannot be read"):
        parse("x", "title = ")
    with pytest.raises(ConfigError, match="the recipe x cannot be read"):
        parse("x", "title = 'x'")


def test_the_command(run, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "datasets--knn-logits--wikitext103-gpt2" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "datastore.json").write_bytes(b"x" * 2000)
    listed = run("catalog", "--json").json["datastores"]
    assert [one["name"] for one in listed] == [one.name for one in ALL]
    assert {one["name"]: one["cached_bytes"] for one in listed}["wikitext103-gpt2"] == 2000
    lines = run("catalog").out.splitlines()
    assert any("0.0 MB here" in line for line in lines)
    shown = run("catalog", "wikitext103-gpt2").out
    assert "14.84" in shown
    assert "to publish as  knn-logits/wikitext103-gpt2" in shown
    assert "knn-logits build neulab/gpt2-finetuned-wikitext103" in shown
    failed = run("catalog", "nonsense")
    assert (failed.code, len(failed.err.splitlines())) == (1, 1)
