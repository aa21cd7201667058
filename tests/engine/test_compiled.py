"""Models that were compiled, and ran, before a processor was attached."""

import pytest
import torch
from conftest import TEXTS, make_gpt2
from hooked import greedy, same

import knn_logits


def compile_call(model):
    model.compile(backend="eager")


def compile_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")


def compile_decoder(model):
    model.transformer.forward = torch.compile(model.transformer.forward, backend="eager")


def compile_layers(model):
    for layer in model.transformer.h:
        layer.compile(backend="eager")


def wrap_layers(model):
    for number, layer in enumerate(model.transformer.h):
        model.transformer.h[number] = torch.compile(layer, backend="eager")


WAYS = [compile_call, compile_forward, compile_decoder, compile_layers, wrap_layers]


@pytest.fixture(autouse=True)
def _no_code_of_other_tests():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Compiling takes seconds for each layer and more for what is around them, so a layer alone is
# compiled. `test_static_cache_compiled` compiles a whole model, as `generate()` does. The long run
# tries each way: with the check of the keys, or without it.
@pytest.mark.parametrize(
    ("compile_it", "check", "layers"),
    [
        pytest.param(compile_layers, False, 1, id="compile_layers-1"),
        *(
            pytest.param(way, number % 2 == 1, 2, id=way.__name__, marks=pytest.mark.soak)
            for number, way in enumerate(WAYS)
        ),
    ],
)
def test_a_compiled_model_works(tokenizer, ids, tmp_path, compile_it, check, layers):
    model, mine = (make_gpt2(layers=layers) for _ in range(2))
    settings = {"k": 16, "lmbda": 0.4, "temperature": 5.0, "calibrate": False}
    store = knn_logits.build_datastore(model, tokenizer, TEXTS, tmp_path / "s", **settings)
    plain = greedy(model, ids)
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        expected = greedy(model, ids, knn)
    compile_it(mine)
    assert same(greedy(mine, ids), plain)
    with knn_logits.KNNLogitsProcessor(mine, store, check=check) as knn:
        assert same(greedy(mine, ids, knn), expected)
    assert same(greedy(mine, ids), plain)


def test_a_datastore_of_a_compiled_model(mine, tokenizer, tmp_path):
    compile_call(mine)
    made = knn_logits.build_datastore(
        mine, tokenizer, ["The harbour crane lifts."], tmp_path / "s", calibrate=False
    )
    assert len(made) > 0


def test_a_model_that_is_compiled_without_breaks_does_not_run_without_knn(store, ids):
    model = make_gpt2()
    model.compile(backend="eager", fullgraph=True)
    raises = pytest.raises(torch._dynamo.exc.TorchDynamoException)
    with knn_logits.KNNLogitsProcessor(model, store) as knn, raises:
        greedy(model, ids, knn)
