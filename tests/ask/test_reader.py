"""The reader, a cross-encoder that tells whether a text answers a question."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from knn_logits.engine.encoder import Encoder
from knn_logits.engine.reader import reader_of, with_changes

DEFROST = "Defrost the Nordpol 300 every seven months."
FERRY = "Breakfast is served from six."


@pytest.fixture(scope="module")
def encoder(encoder_folder):
    return Encoder(encoder_folder)


def test_an_answer_has_more_log_odds_than_a_sentence_about_the_same(encoder):
    reader = reader_of(encoder)
    rows = [
        ("How often should the Nordpol 300 be defrosted?", DEFROST, FERRY),
        (
            "What does a night at the hotel cost?",
            "A night there costs 40 euros.",
            "It has 40 rooms.",
        ),
        ("When does the office open?", "The office opens at nine.", "The office is upstairs."),
    ]
    for question, answer, other in rows:
        right, wrong = reader.log_odds(question, [answer, other])
        assert right > wrong + 1.0
    cost, often = (
        reader.log_odds(question, [DEFROST])[0]
        for question in ("How much does a Nordpol 300 cost?", rows[0][0])
    )
    assert cost < 0 < often


def test_log_odds_do_not_depend_on_the_other_texts(encoder):
    reader, question = reader_of(encoder), "When is breakfast?"
    texts = [FERRY, DEFROST * 30, "No."]
    together = reader.log_odds(question, texts)
    alone = [reader.log_odds(question, [text])[0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=0.1)
    assert reader_of(encoder) is reader
    assert reader.log_odds("Why? " * 400, texts[:1]).shape == (1,)


def test_changes_are_added_to_matrices_and_replace_other_weights():
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=8)  # fmt: skip
    model = BertModel(config).eval()
    name = "encoder.layer.1.output.dense"
    a, b, norm = torch.randn(2, 8), torch.randn(8, 2), torch.rand(8)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    changes = {f"{name}.a": a, f"{name}.b": b, "encoder.layer.0.output.LayerNorm.weight": norm}
    after = with_changes(model, {**changes, "head.bias": torch.zeros(1)}).state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
        expected = value
        if key == f"{name}.weight":
            expected = value + b @ a
        elif key.endswith("0.output.LayerNorm.weight"):
            expected = norm
        torch.testing.assert_close(after[key], expected)


def test_another_encoder_has_no_reader(encoder):
    other = Encoder.__new__(Encoder)
    other.sha256 = "0" * 64
    assert reader_of(other) is None
