"""Every model type of the table finds its key, gives its states, and generates with kNN exactly.

`make test` runs eight types, which differ most; `make test-all` runs all.
"""

import numpy as np
import pytest
import torch
from conftest import PAIRS, TEXTS, pair_documents
from model_table import SEQ2SEQ, TABLE, VOCABULARY
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import knn_logits
from knn_logits.engine.forward import key_states_and_logits
from knn_logits.engine.location import find_key

EIGHT = ("gpt2", "llama", "opt", "mixtral", "gemma3n_text", "falcon_h1", "marian", "t5")
START = 1
NEW_TOKENS = 6
# All entries: at the edge of a smaller k, rounding could change who votes.
K = 256
LMBDA = 0.5
TEMPERATURE = 4.0


def make(kind):
    """A tiny model of a type; its random weights are large, so that tokens differ."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        **TABLE[kind][1],
        vocab_size=VOCABULARY,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=START,
    )
    auto = AutoModelForSeq2SeqLM if kind in SEQ2SEQ else AutoModelForCausalLM
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    # No end token: every row of a batch gets all its new tokens.
    model.generation_config = GenerationConfig(
        pad_token_id=0, bos_token_id=0, decoder_start_token_id=START
    )
    return model


def mixture(store, state, logits):
    """log p and log p_LM of one position, in float64, from all keys of the datastore."""
    keys = store.keys(np.arange(len(store))).astype(np.float64)
    distances = ((keys - state.double().numpy()) ** 2).sum(-1)
    nearest = np.argsort(distances)[:K]
    weights = np.exp(-(distances[nearest] - distances[nearest[0]]) / TEMPERATURE)
    votes = np.zeros(len(logits))
    np.add.at(votes, store.values.numpy()[nearest], weights / weights.sum())
    own = torch.softmax(logits.double(), -1).numpy()
    return np.log(LMBDA * votes + (1 - LMBDA) * own), np.log(own)


def padded(rows, side):
    """The rows as one batch, and its mask."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        part = slice(longest - len(row), None) if side == "left" else slice(len(row))
        ids[number, part], mask[number, part] = row, 1
    return ids, mask


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=() if one in EIGHT else pytest.mark.soak) for one in TABLE],
)
def kind(request):
    if request.param not in CONFIG_MAPPING:
        pytest.skip("this release of transformers does not have it")
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    return make(kind)


def test_the_key_is_the_input_of_the_last_feed_forward_network(model, kind):
    location = find_key(model)
    assert (location.module, location.side) == (TABLE[kind][0], "input")


def test_generate_uses_the_exact_mixture(model, kind, tokenizer, pair_tokenizer, tmp_path):
    used = pair_tokenizer if kind in SEQ2SEQ else tokenizer
    store = knn_logits.build_datastore(
        model,
        used,
        pair_documents() if kind in SEQ2SEQ else TEXTS,
        tmp_path / "store",
        window=knn_logits.WindowConfig(64, 32),
        keys_dtype="float32",
        k=K,
        lmbda=LMBDA,
        temperature=TEMPERATURE,
    )
    if kind in SEQ2SEQ:
        prompts = [torch.tensor(used(source)["input_ids"]) for source, _ in PAIRS[:2]]
    else:
        prompts = [torch.tensor(store.passage(0, 0, 8).after), torch.tensor([START, 70, 71, 72])]
    ids, mask = padded(prompts, "right" if kind in SEQ2SEQ else "left")
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=[knn],
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            return_dict_in_generate=True,
            output_scores=True,
        )
    assert len(output.scores) == NEW_TOKENS
    largest_change = 0.0
    for row, prompt in enumerate(prompts):
        # The reference has neither padding nor a cache.
        text = output.sequences[row, -NEW_TOKENS:]
        text = torch.cat([torch.tensor([START]) if kind in SEQ2SEQ else prompt, text])
        inputs = {"input_ids": text[None]}
        if kind in SEQ2SEQ:
            inputs = {"input_ids": prompt[None], "decoder_input_ids": text[None]}
        states, logits = key_states_and_logits(model, find_key(model), inputs)
        for step in range(NEW_TOKENS):
            place = len(text) - NEW_TOKENS + step
            expected, own = mixture(store, states[0, place - 1], logits[0, place - 1])
            mixed = torch.log_softmax(output.scores[step][row].double(), -1).numpy()
            assert np.abs(mixed - expected).max() < 1e-4
            assert mixed.argmax() == text[place]
            largest_change = max(largest_change, np.abs(expected - own).max())
    assert largest_change > 0.1
