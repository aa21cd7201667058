"""Keys that are computed in pieces, without a cluster: the bytes of one machine."""

import numpy as np
import pytest

from knn_logits.building.ray_keys import KeyWorker, cut
from knn_logits.engine import keys as key_module
from knn_logits.engine.compatibility import CANARY_KEYS
from knn_logits.engine.keys import compute_keys, grouped
from knn_logits.engine.location import find_key
from knn_logits.engine.windows import plan
from knn_logits.errors import MismatchError


@pytest.mark.parametrize("first_entry", [0, 10, 30])
def test_pieces_give_the_same_keys_as_one_machine(model, store, first_entry, monkeypatch):
    monkeypatch.setattr(key_module, "_BUFFER_BYTES", 1)  # many groups
    location = find_key(model, "ffn_input")
    tokens, contexts = np.asarray(store.tokens), store.contexts
    windows = list(plan(contexts.first, contexts.length, 64, 32))
    shape = {"dim": 32, "dtype": "float16", "batch_tokens": 32}
    whole = compute_keys(model, location, tokens, windows, first_entry=first_entry, **shape)
    worker = KeyWorker(model, location, shape, 1, store.checks)
    pieces = list(cut(tokens, grouped(windows, **shape), first_entry))
    assert len(pieces) > 2
    found = [worker(piece)[0] for piece in pieces]
    assert np.concatenate(found).tobytes() == np.concatenate(list(whole)).tobytes()


def test_a_worker_that_computes_other_keys_is_refused(model, store):
    location = find_key(model, "ffn_input")
    other = {CANARY_KEYS: store.checks[CANARY_KEYS] + 0.5}
    with pytest.raises(MismatchError, match="computes other keys"):
        KeyWorker(model, location, {}, 1, store.checks | other)
