"""The hooks on a model: they come off without a trace."""

import copy
import gc

import pytest
import torch
from hooked import attach, greedy, same

from knn_logits.errors import MismatchError, ModelError


def snapshot(model):
    """Every module's attributes, and every hook."""
    return {
        path: [(name, dict(value) if "_hooks" in name else None) for name, value in own.items()]
        for path, own in ((path, vars(module)) for path, module in model.named_modules())
    }


# Coming off


def test_close_takes_everything_off(mine, store):
    before = snapshot(mine)
    knn = attach(mine, store)
    assert snapshot(mine) != before
    knn.close()
    assert snapshot(mine) == before
    knn.close()
    assert snapshot(mine) == before


def generates(model, store, ids):
    with attach(model, store) as knn:
        greedy(model, ids, knn)


def fails_in_with(model, store, ids):
    with pytest.raises(ZeroDivisionError), attach(model, store):
        raise ZeroDivisionError


def fails_in_a_pass(model, store, ids):
    with pytest.raises(IndexError), attach(model, store) as knn:
        greedy(model, torch.tensor([[5, 10_000]]), knn)


def is_collected(model, store, ids):
    knn = attach(model, store)
    greedy(model, ids, knn)
    del knn
    gc.collect()


def is_refused(model, store, ids):
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.mul_(3)
    with pytest.raises(MismatchError):
        attach(model, store)


@pytest.mark.parametrize(
    "end", [generates, fails_in_with, fails_in_a_pass, is_collected, is_refused]
)
def test_nothing_is_left_behind(mine, store, ids, end):
    before = snapshot(mine)
    end(mine, store, ids)
    assert snapshot(mine) == before


@pytest.mark.parametrize("place", ["", "transformer", "transformer.h.1.mlp"])
def test_closing_while_another_thread_is_in_a_forward_pass_does_not_end_it(mine, store, ids, place):
    expected = mine(ids).logits
    knn = attach(mine, store)
    # What another thread's close() does between PyTorch's listing the hooks and its calling them.
    hook = mine.get_submodule(place).register_forward_pre_hook(lambda *_: knn.close(), prepend=True)
    with torch.no_grad():
        found = mine(ids).logits
    hook.remove()
    assert torch.equal(found, expected)


def test_a_closed_processor_refuses_to_be_called(mine, store, ids):
    knn = attach(mine, store)
    knn.close()
    with pytest.raises(ModelError, match="is closed: create a new one"):
        knn(ids, torch.zeros(1, 384))
    with pytest.raises(ModelError, match="is closed"):
        greedy(mine, ids, knn)


def test_generate_without_the_processor_is_as_before(mine, store, ids):
    plain = greedy(mine, ids)
    with attach(mine, store) as knn:
        assert same(greedy(mine, ids), plain)
        mixed = greedy(mine, ids, knn)
        assert same(greedy(mine, ids), plain)
    assert not same(mixed, plain)


# Copies of a model


def test_a_copy_made_while_attached_is_a_model_of_its_own(mine, store, ids):
    plain = greedy(mine, ids)
    with attach(mine, store) as knn:
        mixed = greedy(mine, ids, knn)
        other = copy.deepcopy(mine)
        assert same(greedy(other, ids), plain)
        # What the copy computes concerns no processor of the original.
        with torch.no_grad():
            other(ids)
        assert knn._capture.find(ids) is None
        assert same(greedy(mine, ids, knn), mixed)
        with attach(other, store) as its_own:
            assert same(greedy(other, ids, its_own), mixed)
            assert same(greedy(mine, ids, knn), mixed)
    assert same(greedy(other, ids), plain)
