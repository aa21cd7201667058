"""An answer that goes round in circles is ended. No token is forbidden for having stood before."""

import pytest
import torch
from conftest import TEXTS

from knn_logits import KNNLogitsProcessor
from knn_logits.generation.processor import goes_round
from knn_logits.store.records import SettingsRecord

FERRY = "From Gran to Hallo the crossing takes 45 minutes."


@pytest.fixture(scope="module")
def looped(build, tmp_path_factory):
    """A datastore that ends loops of six tokens."""
    folder = tmp_path_factory.mktemp("looping") / "store"
    texts = [*TEXTS, FERRY]
    store = build(texts, folder, calibrate=False)
    record = SettingsRecord(
        k=300, lmbda=0.95, temperature=1.0, suffix_weight=1e4, no_repeat_ngram_size=6
    )
    store.manifest = store.manifest.model_copy(update={"settings": record})
    return store


def write(model, tokenizer, store, text, size, *, tokens=60, **settings):
    """The new tokens, and those that are written without a rule against loops."""
    texts = [tokenizer(one)["input_ids"] for one in ([text] if isinstance(text, str) else text)]
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in texts])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    memory = {"lmbda": settings.pop("lmbda", None)}
    rows = []
    for loop_size in (size, None):
        with KNNLogitsProcessor(model, store, **memory) as knn:
            assert knn.loop_size == 6
            knn.loop_size = loop_size
            output = knn.generate(
                **inputs, max_new_tokens=tokens, eos_token_id=0, pad_token_id=0, **settings
            )
        rows.append(output[:, longest:].tolist())
    return rows


@pytest.mark.parametrize(
    ("answer", "size", "loops"),
    [
        ([], 4, False),
        ([1, 2, 3, 4, 5, 6, 7, 8], 4, False),
        ([9, 1, 2, 1, 2, 1, 2], 4, True),
        ([9, 1, 2, 1, 2, 1], 4, False),
        ([1, 2, 3, 4, 5, 1, 2, 3, 4], 4, False),
        ([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 4, True),
        ([1, 2, 3, 4, 8, 1, 2, 3, 4, 5], 4, False),
        ([7, 7, 7, 7, 7], 4, True),
    ],
)
def test_a_whole_round_of_enough_tokens_is_a_loop(answer, size, loops):
    assert goes_round(answer, size) == loops


@pytest.mark.parametrize(
    "settings",
    [{"draft": False}, {"draft": True}, {"num_beams": 3}, {"do_sample": False, "top_k": 5}],
    ids=str,
)
def test_a_loop_of_the_model_ends_the_answer(model, tokenizer, looped, settings):
    (ended,), (endless,) = write(model, tokenizer, looped, "A dog", 6, lmbda=1e-9, **settings)
    assert len(endless) == 60
    assert ended[-1] == 0
    assert len(ended) < 60
    assert ended[:-1] == endless[: len(ended) - 1]
    assert goes_round(ended[:-1], 6)
    assert not goes_round(ended[:-2], 6)


def test_each_row_of_a_batch_ends_by_itself(model, tokenizer, looped):
    prompts = ["A dog", "The keeper reads the logbook"]
    together, _ = write(model, tokenizer, looped, prompts, 6, lmbda=1e-9, draft=False)
    for row, prompt in zip(together, prompts, strict=True):
        (alone,), _ = write(model, tokenizer, looped, prompt, 6, lmbda=1e-9)
        assert row[: len(alone)] == alone
        assert set(row[len(alone) :]) <= {0}


@pytest.mark.parametrize("draft", [False, True])
def test_a_fact_of_the_prompt_can_be_said_again(model, tokenizer, looped, draft):
    text = f"{FERRY} To repeat: From Gran to Hallo the crossing takes"
    (row,), (free,) = write(model, tokenizer, looped, text, 6, tokens=8, draft=draft)
    assert row == free
    assert tokenizer.decode(row).startswith(" 45")


def test_a_text_that_may_not_end_goes_on(model, tokenizer, looped):
    settings = {"lmbda": 1e-9, "min_new_tokens": 60}
    (row,), (free,) = write(model, tokenizer, looped, "A dog", 6, **settings)
    assert row == free
    assert not torch.tensor(row).eq(0).all()
