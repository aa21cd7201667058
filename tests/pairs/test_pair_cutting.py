"""How sources and targets are cut: starts, ends, languages, prefixes, and what is too long."""

import copy
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import FAMILIES, model_of
from tokenizers import processors

from knn_logits.engine.pairs import PairTokenizer
from knn_logits.errors import ConfigError, CorpusError, ModelError

CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])
TEXTS = st.text(CHARACTERS, min_size=1, max_size=60)


@pytest.fixture(params=FAMILIES)
def family(request):
    make, english, german, unknown = FAMILIES[request.param]
    return request.param, make(), english, german, unknown


@pytest.fixture
def pairs(marian, pair_tokenizer):
    return PairTokenizer(marian, pair_tokenizer)


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_targets_are_the_texts_between_start_and_end(marian, pair_tokenizer, texts):
    pairs = PairTokenizer(marian, pair_tokenizer)
    found = pairs.targets(texts)
    assert len(found) == len(texts)
    for ids, text in zip(found, texts, strict=True):
        assert (ids[0], ids[-1]) == (1, 0)
        assert pair_tokenizer.decode(ids[1:-1]) in (text, " " + text)
        assert ids[1:] == pair_tokenizer(text)["input_ids"]
        assert pairs.targets([text]) == [ids]


@settings(max_examples=80, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=6),
    prefix=st.sampled_from(["", "translate English to German: "]),
    limit=st.integers(3, 70),
)
def test_sources_are_the_texts_as_far_as_they_can_be_read(pair_tokenizer, texts, prefix, limit):
    model = torch.nn.Module()
    model.config = type("Config", (), {"max_position_embeddings": limit})()
    found = PairTokenizer(model, pair_tokenizer, source_prefix=prefix).sources(texts)
    for ids, text in zip(found, texts, strict=True):
        whole = pair_tokenizer(prefix + text)["input_ids"]
        assert ids.dtype == np.int32
        assert len(ids) == min(limit, len(whole))
        assert ids[-1] == 0
        assert ids[:-1].tolist() == whole[: len(ids) - 1]


def test_an_end_and_a_language_stay_where_a_source_is_cut(family, caplog):
    name, tokenizer, english, german, _ = family
    model = model_of(tokenizer, max_position_embeddings=12)
    pairs = PairTokenizer(model, tokenizer, source_lang=english, target_lang=german)
    with caplog.at_level(logging.WARNING):
        long, longer, short = pairs.sources(["an old crane by the sea", "x" * 40, "x"])
    ends = list(short)[-2:] if name == "mbart" else list(short)[-1:]
    for ids in (long, longer):
        assert len(ids) == 12
        assert list(ids)[-len(ends) :] == ends
        assert name == "mbart" or ids[0] == short[0]
    assert caplog.text.count("the model's context is 12") == 1


def test_the_decoder_starts_as_it_was_trained_to(family):
    name, tokenizer, english, german, _ = family
    model = model_of(tokenizer)
    pairs = PairTokenizer(model, tokenizer, source_lang=english, target_lang=german)
    code = getattr(tokenizer, "lang_code_to_token", {}).get(german, german)
    language = tokenizer.convert_tokens_to_ids(code)
    expected = [language] if name == "mbart" else [2, language]
    assert pairs.opening == expected
    (ids,) = pairs.targets(["Der Kran hebt"])
    assert ids[: len(expected)] == expected
    assert ids[-1] == 2
    assert pairs.texts(torch.tensor([ids])) == ["Der Kran hebt"]
    inputs = pairs.inputs(["a crane"], torch.device("cpu"))
    output = model.generate(**inputs, **pairs.settings, max_new_tokens=5)
    assert output[0, : len(expected)].tolist() == expected


def test_the_users_tokenizer_is_left_as_it_was(family):
    _, tokenizer, english, german, _ = family
    before = tokenizer.src_lang, tokenizer.tgt_lang, tokenizer("a crane")["input_ids"]
    pairs = PairTokenizer(model_of(tokenizer), tokenizer, source_lang=german, target_lang=english)
    pairs.sources(["a crane"])
    pairs.targets(["a crane"])
    assert (tokenizer.src_lang, tokenizer.tgt_lang, tokenizer("a crane")["input_ids"]) == before


def test_a_target_language_that_nobody_named_is_refused(family):
    _, tokenizer, english, _, _ = family
    for given_too in ({}, {"source_lang": english}):
        pairs = PairTokenizer(model_of(tokenizer), tokenizer, **given_too)
        with pytest.raises(ConfigError, match="--target-lang"):
            pairs.targets(["a crane"])
        assert pairs.settings == {}
        assert len(pairs.sources(["a crane"])) == 1


@pytest.mark.parametrize("option", ["source_lang", "target_lang"])
@pytest.mark.parametrize("language", ["xx", "</s>", "crane", "", "the"])
def test_an_unknown_language_is_refused(family, option, language):
    _, tokenizer, _, _, unknown = family
    model = model_of(tokenizer)
    for name in (language, unknown):
        with pytest.raises(ConfigError, match="the tokenizer has no language"):
            PairTokenizer(model, tokenizer, **{option: name})


def test_a_model_that_does_not_say_where_targets_begin(pair_tokenizer):
    model = torch.nn.Module()
    model.config = object()
    pairs = PairTokenizer(model, pair_tokenizer)
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        pairs.targets(["a"])


def test_an_empty_source(marian, pair_tokenizer, pairs):
    assert [ids.tolist() for ids in pairs.sources([""])] == [[0]]
    bare = copy.deepcopy(pair_tokenizer)
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    with pytest.raises(CorpusError, match="a source is empty"):
        PairTokenizer(marian, bare).sources(["a", ""])
