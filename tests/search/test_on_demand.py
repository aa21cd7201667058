"""A datastore without keys: its answers are those of a datastore with keys, as far as it looks."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from conftest import TEXTS
from distances import search_steps
from folders import change, one_line, read_content
from mixture_reference import assert_shares, encode

import knn_logits
from knn_logits import Datastore, Document, KNNLogitsProcessor, Memory, WindowConfig, explain
from knn_logits.building.removing import compact
from knn_logits.engine.location import find_key
from knn_logits.engine.windows import window_keys
from knn_logits.errors import ConfigError, DamagedError, DatastoreError, MismatchError
from knn_logits.search.neighbors import Prefixes
from knn_logits.search.on_demand import PassageKeys, Passages

SETTINGS = {"k": 16, "lmbda": 0.4, "temperature": 5.0}
PROMPT = "When error code E42 appears, open the"


def built(model, tokenizer, folder, texts=TEXTS, **settings):
    return knn_logits.build_datastore(
        model, tokenizer, texts, folder, window=WindowConfig(64, 32), **{**SETTINGS, **settings}
    )


@pytest.fixture(scope="module")
def bare(model, tokenizer, tmp_path_factory):
    return built(model, tokenizer, tmp_path_factory.mktemp("stores") / "s", store_keys=False)


@pytest.fixture
def folder(bare, tmp_path):
    return shutil.copytree(bare.folder, tmp_path / "store")


def written(model, tokenizer, memory, prompts=(PROMPT,), **settings):
    inputs = encode(tokenizer, list(prompts))
    with KNNLogitsProcessor(model, memory) as knn:
        output = model.generate(
            **inputs,
            **{"max_new_tokens": 12, "do_sample": False, **settings},
            logits_processor=[knn],
            return_dict_in_generate=True,
        )
        beams = "num_beams" in settings
        return output.sequences, None if beams else knn.trace(output, tokenizer)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (knn_logits.build_index, "index"),
        (lambda folder: knn_logits.cluster(folder, 2), "index --clusters"),
    ],
)
def test_what_needs_stored_keys_says_how_to_get_them(folder, call, what):
    with pytest.raises(DatastoreError, match=f"`{what}` needs stored keys: rebuild .* --no-keys"):
        call(folder)


def test_the_search_is_exact_over_the_passages_that_are_found(model, tokenizer, store, bare):
    retriever = Memory(model, bare, k=5).retriever
    ids = torch.tensor([tokenizer(TEXTS[1] + " " + TEXTS[2])["input_ids"][:60]])
    states = torch.randn(1, 60, 32, generator=torch.Generator().manual_seed(0))
    found = search_steps(retriever, states, ids)
    texts = Prefixes.of_steps(ids, 60)
    passages = retriever._finder.find(texts)
    assert len(set(passages)) > 1
    for row, (query, own) in enumerate(zip(states[0], passages, strict=True)):
        entries = np.concatenate(
            [np.arange(0), *(np.arange(*retriever._passages.span(n)) for n in own)]
        )
        if not len(entries):
            assert not found.mask[row].any()
            continue
        keys = vectors(retriever.keys.of(own))
        far = (keys - query).square().sum(-1)
        nearest = far.topk(min(5, len(far)), largest=False)
        assert found.ids[row][found.mask[row]].tolist() == entries[nearest.indices.numpy()].tolist()
        distances = found.distances[row][found.mask[row]]
        torch.testing.assert_close(distances, nearest.values, atol=1e-3, rtol=1e-4)
        assert (
            found.values[row][found.mask[row]].tolist()
            == store.values[found.ids[row][found.mask[row]]].tolist()
        )


def vectors(parts):
    """float32 [entries, dim], the keys of some passages."""
    return torch.cat([one._keys + one._mean for one in parts])


def test_keys_are_those_that_a_build_stores(model, store, bare):
    passages = Passages(bare.contexts, 16, 48)
    keys = PassageKeys(bare, passages, partial(window_keys, model, find_key(model)))
    every = tuple(range(len(passages)))
    found = vectors(keys.of(every))
    expected = torch.from_numpy(store.keys(np.arange(len(store)))).float()
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=1e-3)
    assert torch.equal(
        vectors(keys.of((3, 1))), torch.cat([vectors(keys.of((n,))) for n in (3, 1)])
    )
    assert keys.of((3,))[0] is keys.of((3,))[0]


def test_a_prompt_of_few_tokens_has_neighbors(model, tokenizer, bare):
    _, trace = written(model, tokenizer, Memory(model, bare), ["When error"], max_new_tokens=1)
    every = bare.manifest.on_demand.every
    assert len(tokenizer("When error")["input_ids"]) < every
    assert trace[0].tokens[0].neighbors


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}])
def test_text_is_what_the_mixture_says_at_each_step(model, tokenizer, bare, settings):
    memory = Memory(model, bare)
    prompts = [PROMPT] if "prompt_lookup_num_tokens" in settings else [PROMPT, "Queen Maira built"]
    sequences, _ = written(model, tokenizer, memory, prompts, **settings)
    alone = [
        written(model, tokenizer, Memory(model, bare), [one], **settings)[0] for one in prompts
    ]
    for row, own in zip(sequences, alone, strict=True):
        words = [one for one in row.tolist() if one]
        assert words == [one for one in own[0].tolist() if one]
    if "num_beams" not in settings:
        plain = written(model, tokenizer, memory, prompts)[0]
        assert torch.equal(plain, sequences)


def test_a_written_text_has_the_probabilities_that_its_explanation_has(model, tokenizer, bare):
    memory = Memory(model, bare, **SETTINGS)
    sequences, trace = written(model, tokenizer, memory)
    assert any(token.neighbors for token in trace[0].tokens)
    for token in trace[0].tokens:
        assert_shares(token)
    text = tokenizer.decode(sequences[0])
    if tokenizer(text)["input_ids"] != sequences[0].tolist():
        pytest.skip("the text is cut into other tokens than those that were written")
    again = explain(model, tokenizer, memory, text)[0].tokens[-12:]
    for one, other in zip(trace[0].tokens, again, strict=True):
        assert one.p == pytest.approx(other.p, abs=1e-5)
        assert [n.entry for n in one.neighbors] == [n.entry for n in other.neighbors]


def test_documents_that_are_left_out_or_removed_are_not_found(model, tokenizer, folder):
    text = TEXTS[1]
    memory = Memory(model, folder, **SETTINGS)

    def documents(memory):
        trace = explain(model, tokenizer, memory, text)
        return {one.document for token in trace[0].tokens for one in token.documents}

    assert "1" in documents(memory)
    without = memory.asked(exclude=["1"])
    assert "1" not in documents(without)
    knn_logits.remove_documents(folder, "1")
    assert "1" not in documents(Memory(model, folder, **SETTINGS))
    compacted = compact(folder)
    assert compacted.manifest.documents == len(TEXTS) - 1
    assert compacted.manifest.on_demand is not None
    Datastore(folder)
    assert "1" not in documents(Memory(model, folder, **SETTINGS))


def test_new_documents_are_found_at_once(model, tokenizer, folder):
    new = "The ferry to Oldenport leaves at nine, and the ferry back leaves at noon."
    store = knn_logits.add_documents(model, tokenizer, folder, [Document(new, "ferry")])
    Datastore(folder)
    assert len(store.suffixes) == len(store)
    trace = explain(model, tokenizer, store, "So the ferry to Oldenport leaves at nine.")
    assert "ferry" in {one.document for t in trace[0].tokens for one in t.documents}
    texts = [Document(one, str(number)) for number, one in enumerate(TEXTS[:3])]
    done = knn_logits.sync_documents(model, tokenizer, folder, texts)
    assert set(done.removed) == {"3", "4", "5", "6", "7", "ferry"}


def test_it_is_evaluated_and_tuned(tune, evaluate, bare):
    text = [TEXTS[1] + " " + TEXTS[5]] * 2
    found = evaluate(bare, text, allow_overlap=True)
    perplexity = found.perplexity
    assert perplexity.interpolated < perplexity.lm
    with_infini_gram = evaluate(bare, text, allow_overlap=True, infini_gram=0.3)
    assert with_infini_gram.perplexity.interpolated < perplexity.lm
    assert tune(bare, text, allow_overlap=True).chosen.k <= 1024


@pytest.mark.parametrize(
    "settings", [{"retomaton": True}, {"refine": True}, {"nprobe": 4}], ids=str
)
def test_what_needs_stored_keys_is_refused(model, bare, settings):
    with pytest.raises(
        ConfigError, match=f"stores no keys, which --{next(iter(settings))} needs"
    ) as one:
        Memory(model, bare, **settings)
    one_line(one)


def test_passages_longer_than_the_model_reads_are_refused(model, tokenizer, folder):
    """A hostile folder may say a window of its own, which its passages then fit into."""
    content = read_content(folder)
    demand = content["on_demand"] | {"passage": 1 << 20}
    windows = content["windows"] | {"window": 1 << 21, "stride": 1 << 20}
    change(folder, on_demand=demand, windows=windows)
    with pytest.raises(MismatchError, match="windows have 2,097,152 tokens, but this model"):
        written(model, tokenizer, Datastore(folder), ["word " * 300])


def test_the_text_without_its_suffix_index_is_refused(folder):
    files = [one for one in read_content(folder)["files"] if "suffixes" not in one["name"]]
    change(folder, files=files)
    with pytest.raises(DamagedError, match="no suffix index for keys on demand"):
        Datastore(folder)
