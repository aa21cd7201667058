"""One forward pass that yields keys, beside other passes of the same model."""

import threading

import torch
from hooked import all_states

LISTED = "transformer.h.1.mlp"


def test_a_pass_that_ends_while_another_thread_runs_the_model_does_not_end_that_one(mine, ids):
    expected, keys = mine(ids).logits, all_states(mine, ids)
    own, begun, go, found = threading.get_ident(), threading.Event(), threading.Event(), []

    # The other thread's hook stands on its module, and its pass has not come to it yet.
    def wait(*_):
        if threading.get_ident() != own:
            begun.set()
            assert go.wait(60)

    # This runs between PyTorch's listing the module's hooks here and its calling them.
    def let_the_other_end(*_):
        if threading.get_ident() == own:
            go.set()
            other.join(60)

    other = threading.Thread(target=lambda: found.append(all_states(mine, ids)))
    hooks = [
        mine.transformer.h[0].register_forward_pre_hook(wait),
        mine.get_submodule(LISTED).register_forward_pre_hook(let_the_other_end),
    ]
    other.start()
    assert begun.wait(60)
    with torch.no_grad():
        logits = mine(ids).logits
    for hook in hooks:
        hook.remove()
    assert torch.equal(logits, expected)
    assert torch.equal(found[0], keys)
