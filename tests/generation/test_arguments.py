"""Which settings a call of `generate()` has: its own, the datastore's and the model's."""

import warnings

import pytest
from transformers import GenerationConfig

from knn_logits import KNNLogitsProcessor
from knn_logits.errors import ConfigError


def repeats(tokens, length):
    grams = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return len(grams) - len(set(grams))


def test_a_prompt_is_a_tensor_of_ids(model, tokenizer, store):
    inputs = tokenizer("The keeper reads", return_tensors="pt")
    with KNNLogitsProcessor(model, store) as knn:
        for prompt in ("The keeper reads", inputs, [[1, 2]], inputs["input_ids"][0]):
            with pytest.raises(ConfigError, match="the prompt must be a tensor of ids"):
                knn.generate(prompt, max_new_tokens=1)
        assert knn.generate(inputs["input_ids"], max_new_tokens=1).shape == (1, 7)


@pytest.mark.parametrize("draft", [False, True])
def test_a_generation_config_is_obeyed(model, tokenizer, store, draft):
    inputs = tokenizer("The pump needs oil. The pump needs oil. The", return_tensors="pt")
    config = GenerationConfig(max_new_tokens=40, no_repeat_ngram_size=2, eos_token_id=0)
    with KNNLogitsProcessor(model, store, k=8, lmbda=0.9, temperature=1.0) as knn:
        output = knn.generate(**inputs, draft=draft, max_new_tokens=40)
        assert repeats(output[0].tolist(), 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            output = knn.generate(**inputs, draft=draft, generation_config=config)
    start = inputs["input_ids"].shape[1] - 1
    assert not repeats(output[0].tolist()[start:], 2)


def test_beams_of_the_model_itself_are_written_without_drafts(model, tokenizer, store, monkeypatch):
    monkeypatch.setattr(model.generation_config, "num_beams", 3)
    inputs = tokenizer("The keeper reads", return_tensors="pt")
    config = GenerationConfig(max_new_tokens=12, return_dict_in_generate=True, pad_token_id=0)
    with KNNLogitsProcessor(model, store) as knn:
        one, other = (
            knn.generate(**inputs, draft=draft, generation_config=config) for draft in (False, True)
        )
    assert one.beam_indices is not None
    assert one.sequences.tolist() == other.sequences.tolist()
