"""Other model types than the one that the tests of pairs use: built, evaluated, traced."""

import math

import numpy as np
import pytest
import torch
from building import SETTINGS
from conftest import PAIRS, pair_documents
from pair_mixtures import LMBDA, SOURCES, ended, mixtures, parts
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import knn_logits
from knn_logits import Document

BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0,
    "forced_eos_token_id": None,
}  # fmt: skip
POSITIONS = {"max_position_embeddings": 64}
# Some count positions from the first token that is no padding.
START = {"t5": 1, "bart": 0, "mbart": 0, "m2m_100": 0}
BARTS = ("bart", "mbart", "m2m_100")
MODELS = {
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
           "n_positions": 64},
    **dict.fromkeys(BARTS, BART | POSITIONS),
}  # fmt: skip
LONG = "The crane of the harbour lifts a crate of oil. " * 6


@pytest.mark.parametrize(
    "kind", ["t5", *(pytest.param(one, marks=pytest.mark.soak) for one in BARTS)]
)
def test_a_model_of_another_type(kind, pair_tokenizer, tmp_path):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, **MODELS[kind], vocab_size=384, pad_token_id=1, bos_token_id=1, eos_token_id=0,
        decoder_start_token_id=START[kind],
    )  # fmt: skip
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    store = knn_logits.build_datastore(
        model, pair_tokenizer, pair_documents(), tmp_path / "s", **SETTINGS
    )
    assert store.manifest.windows.window == 64
    # A plain reference, with a source that is cut.
    texts = [Document(PAIRS[1][1], "a", source=LONG), Document("Eine Stadt.", "b", source="Oil.")]
    losses = []
    for text in texts:
        source = pair_tokenizer(text.source)["input_ids"]
        source = source if len(source) <= 64 else [*source[:63], 0]
        ids = [START[kind], *pair_tokenizer(text.text)["input_ids"]]
        by_model, by_neighbors = parts(model, store, source, ids)
        mixed = LMBDA * by_neighbors + (1 - LMBDA) * by_model
        losses += [-math.log(mixed[place, token]) for place, token in enumerate(ids[1:])]
    found = knn_logits.evaluate(model, pair_tokenizer, store, texts)
    assert found.perplexity.interpolated == pytest.approx(math.exp(np.mean(losses)), rel=1e-3)
    # Beams of a batch.
    batch = pair_tokenizer(SOURCES[:3], return_tensors="pt", padding=True)
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        output = model.generate(
            **batch, logits_processor=[knn], num_beams=3, max_new_tokens=6,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
    for row, sequence in enumerate(output.sequences.tolist()):
        text = ended(sequence)
        expected = mixtures(model, store, pair_tokenizer(SOURCES[row])["input_ids"], text)
        total = sum(
            math.log(mixture[token]) for mixture, token in zip(expected, text[1:], strict=True)
        )
        own = float(output.sequences_scores[row]) * len(expected)
        assert own == pytest.approx(total, abs=1e-3)
