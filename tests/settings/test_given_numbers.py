"""What no argument can be is refused with one line by every public function."""

import pytest
from conftest import TEXTS

import knn_logits
from knn_logits.errors import ConfigError, ModelError


@pytest.mark.parametrize(
    "settings",
    [
        *({"threads": value} for value in (100_000, 0, -1, 1.5, "4", True)),
        *({"batch_tokens": value} for value in ("8", 0)),
        {"k": 2.5},
    ],
)
def test_of_a_measurement(model, tokenizer, store, settings):
    (name,) = settings
    for function in (knn_logits.evaluate, knn_logits.tune):
        with pytest.raises(ConfigError, match=f"{name} must be an integer"):
            function(model, tokenizer, store, TEXTS, **settings)


@pytest.mark.parametrize("option", [("--seed", 2**32), ("--seed", -1), ("--threads", 100_000)])
def test_of_the_command_line(run, store, option):
    found = run("index", store.folder, *option)
    assert (found.code, option[0] in found.err, "Traceback" in found.err) == (2, True, False)


@pytest.mark.parametrize("datastore", [None, 5, [None]])
def test_what_is_no_datastore(model, datastore):
    with pytest.raises(ConfigError, match="expected a datastore, not"):
        knn_logits.KNNLogitsProcessor(model, datastore)


@pytest.mark.parametrize("device", ["tpuu", "cuda:99", 1.5])
def test_a_device_that_is_not_there(model, store, device):
    with pytest.raises(ConfigError, match="the device"):
        knn_logits.Memory(model, store, device=device)


@pytest.mark.parametrize("wrong", [None, "gpt2"])
def test_what_is_no_model(tokenizer, tmp_path, wrong):
    with pytest.raises(ModelError, match="expected a transformers model"):
        knn_logits.build_datastore(wrong, tokenizer, TEXTS, tmp_path / "s")
    assert not (tmp_path / "s").exists()
