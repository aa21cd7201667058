"""Wrong settings are refused by every command before it loads a model."""

import pytest


@pytest.fixture
def without_weights(tmp_path):
    """A model's folder that cannot be loaded."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gpt2"}')
    return str(tmp_path / "model")


@pytest.mark.parametrize("command", ["generate", "explain", "chat", "serve", "eval"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--k", "0", "k must be a whole number of at least 1"),
        ("--lmbda", "2", "lmbda must lie between 0 and 1"),
        ("--temperature", "0", "temperature must be above 0"),
        ("--suffix-weight", "-1", "suffix_weight must be above 0"),
        ("--weights", "1,2", "do not fit 1 datastores"),
    ],
)
def test_a_wrong_setting_is_named_and_not_the_model(
    run, store, without_weights, command, option, value, message, tmp_path
):
    (tmp_path / "held.txt").write_text("A text that is scored.")
    rest = {
        "generate": ["--prompt", "x"],
        "explain": ["a text"],
        "eval": [str(tmp_path / "held.txt")],
    }
    result = run(command, without_weights, store.folder, *rest.get(command, []), option, value)
    assert result.code == 1
    assert message in result.err
    assert "model" not in result.err
