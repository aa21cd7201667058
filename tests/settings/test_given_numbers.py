"""What no argument can be is refused with one line by every public function."""

import pytest
from conftest import TEXTS

import knn_logits
from knn_logits.errors import ConfigError, ModelError


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 100_000},
        {"threads": 0},
        {"batch_tokens": "8"},
        {"batch_tokens": 0},
        {"samples": -1},
        {"seed": -1},
        {"k": 2.5},
    ],
)
def test_of_a_measurement(model, tokenizer, store, settings):
    (name,) = settings
    for function in (knn_logits.evaluate, knn_logits.tune):
        with pytest.raises(ConfigError, match=f"{name} must be an integer"):
            function(model, tokenizer, store, TEXTS, **settings)


@pytest.mark.parametrize("settings", [{"threads": 100_000}, {"batch_tokens": 0.5}])
def test_of_a_build_and_an_addition(model, tokenizer, store, tmp_path, settings):
    with pytest.raises(ConfigError, match="must be an integer"):
        knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "s", **settings)
    with pytest.raises(ConfigError, match="must be an integer"):
        knn_logits.add_documents(model, tokenizer, store, TEXTS, **settings)
    assert not (tmp_path / "s").exists()


def test_of_an_index_and_clusters(store):
    with pytest.raises(ConfigError, match="threads must be"):
        knn_logits.build_index(store, threads=100_000)
    for clusters, settings in ((4, {"threads": 100_000}), (2.5, {}), (0, {}), (4, {"seed": 2**32})):
        with pytest.raises(ConfigError, match="must be an integer"):
            knn_logits.cluster(store, clusters, **settings)


@pytest.mark.parametrize("number", [-1, 1.5, None, "2"])
def test_of_an_explanation(explain, store, number):
    with pytest.raises(ConfigError, match="max_neighbors must be"):
        explain(store, TEXTS[0], max_neighbors=number)


@pytest.mark.parametrize("name", ["num_beams", "batch_size", "max_new_tokens", "threads"])
def test_of_a_translation(marian, pair_tokenizer, name):
    for number in (0, 2.5, "3"):
        with pytest.raises(ConfigError, match=f"{name} must be"):
            knn_logits.translate(marian, pair_tokenizer, ["The crane."], **{name: number})


@pytest.mark.parametrize("option", [("--seed", 2**32), ("--seed", -1), ("--threads", 100_000)])
def test_of_the_command_line(run, store, option):
    found = run("index", store.folder, *option)
    assert (found.code, option[0] in found.err, "Traceback" in found.err) == (2, True, False)


@pytest.mark.parametrize("datastore", [None, 5, [None]])
def test_what_is_no_datastore(model, datastore):
    with pytest.raises(ConfigError, match="expected a datastore, not"):
        knn_logits.KNNLogitsProcessor(model, datastore)


@pytest.mark.parametrize("weights", [0.3, "a"])
def test_weights_that_are_no_list(model, store, weights):
    with pytest.raises(ConfigError, match="weights must be a list of numbers"):
        knn_logits.KNNLogitsProcessor(model, [store, store], weights=weights)


@pytest.mark.parametrize("device", ["tpuu", "cuda:99", 1.5])
def test_a_device_that_is_not_there(model, store, device):
    with pytest.raises(ConfigError, match="the device"):
        knn_logits.Memory(model, store, device=device)


@pytest.mark.parametrize("wrong", [None, "gpt2"])
def test_what_is_no_tokenizer_or_model(model, tokenizer, store, tmp_path, wrong):
    for function in (
        lambda one: knn_logits.explain(model, one, store, TEXTS[0]),
        lambda one: knn_logits.evaluate(model, one, store, TEXTS),
        lambda one: knn_logits.build_datastore(model, one, TEXTS, tmp_path / "s"),
    ):
        with pytest.raises(ConfigError, match="expected a transformers tokenizer"):
            function(wrong)
    with pytest.raises(ModelError, match="expected a transformers model"):
        knn_logits.build_datastore(wrong, tokenizer, TEXTS, tmp_path / "s")
    assert not (tmp_path / "s").exists()
