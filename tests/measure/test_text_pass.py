"""log p_LM of each token, whatever the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits.engine.location import find_key
from knn_logits.engine.windows import stream
from knn_logits.measure import text_pass
from knn_logits.measure.text_pass import Distributions, score_pieces, scoring_batch_tokens


@settings(max_examples=15)
@given(st.integers(2, 90), st.integers(1, 300), st.integers(0, 3))
def test_each_token_is_scored_as_in_its_window(model, length, batch_tokens, seed):
    tokens = np.random.default_rng(seed).integers(1, 384, length).astype(np.int32)
    pieces = list(stream([tokens], 32, 16))
    location = find_key(model)
    found = {}
    for scored in score_pieces(model, location, pieces, batch_tokens):
        assert len(scored.states) == len(scored.targets) == len(scored.log_p_lm)
        for place, target, score in zip(
            scored.places.tolist(), scored.targets.tolist(), scored.log_p_lm.tolist(), strict=True
        ):
            assert target == tokens[place]
            found[place] = score
    assert sorted(found) == list(range(1, length))
    for piece in pieces:
        with torch.inference_mode():
            ids = torch.from_numpy(piece.tokens[:-1].astype(np.int64))[None]
            log_p = torch.log_softmax(model(ids).logits[0].double(), -1).numpy()
        for row in range(piece.skip, piece.size):
            expected = log_p[row, piece.tokens[row + 1]]
            assert found[piece.first + row + 1] == pytest.approx(expected, abs=2e-5)


def test_few_rows_at_a_time_change_nothing():
    logits = torch.randn(300, 50) * 20
    targets = torch.randint(0, 50, (300,))
    expected = torch.log_softmax(logits.double(), -1).gather(-1, targets[:, None])[:, 0]
    rows = torch.arange(300)
    assert torch.allclose(Distributions(logits, rows).log_p(targets).double(), expected, atol=1e-5)
    half = Distributions(logits.bfloat16(), rows).log_p(targets)
    assert half.dtype == torch.float32


def test_a_large_vocabulary_makes_smaller_batches():
    cpu = torch.device("cpu")
    assert scoring_batch_tokens(cpu, 8192) == text_pass._BATCH_TOKENS["cpu"]
    assert scoring_batch_tokens(cpu, 256_000) < 300
    assert scoring_batch_tokens(torch.device("cuda"), 1 << 40) == 1
