"""GGUF files in llama.cpp: the same keys, scores and texts as transformers has of these weights."""

import signal
import sys
from types import SimpleNamespace

import missing
import pytest
import torch
from conftest import TEXTS
from gguf_files import tiny, write_gguf

from knn_logits.corpus.documents import Document
from knn_logits.engine.compatibility import tokenizer_record
from knn_logits.engine.forward import key_states, key_states_and_logits
from knn_logits.engine.llama_cpp import context
from knn_logits.engine.llama_cpp.context import Weights
from knn_logits.engine.location import find_key
from knn_logits.engine.model_loading import gguf_file, open_gguf
from knn_logits.engine.tokens import chat_ids, text_ids
from knn_logits.errors import (
    ConfigError,
    LimitError,
    MismatchError,
    MissingDependencyError,
    ModelError,
)

KINDS = ("llama", "qwen2", "gpt2", "gemma", "phi3")
TEMPLATE = (
    "{% for message in messages %}<|endoftext|>{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|endoftext|>assistant:{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def _llama_cpp():
    missing.llama_cpp()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="session")
def pair(folder, tokenizer):
    """A model in transformers, and the same weights in llama.cpp."""
    model = tiny("llama")
    return model, open_gguf(write_gguf(folder / "llama.gguf", model, tokenizer))[0]


@pytest.fixture(scope="session")
def store(pair, folder):
    """A datastore that llama.cpp built."""
    from knn_logits import build_datastore

    documents = [Document(text=text, id=f"d{number}") for number, text in enumerate(TEXTS * 2)]
    model = pair[1]
    return build_datastore(model, model.tokenizer, documents, folder / "store", calibrate=False)


def ids_of(tokenizer, text=TEXTS[0]):
    return torch.tensor([tokenizer(text)["input_ids"]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["ffn_input", "layer_output"])
def test_keys_and_scores_are_those_of_transformers(kind, key, folder, tokenizer):
    model, path = tiny(kind), folder / f"{kind}.gguf"
    if not path.exists():
        write_gguf(path, model, tokenizer)
    engine, _ = open_gguf(path)
    inputs = {"input_ids": ids_of(tokenizer)}
    expected, scores = key_states_and_logits(model, find_key(model, key), inputs)
    location = find_key(engine, key)
    states, logits = key_states_and_logits(engine, location, inputs)
    # The cache of llama.cpp is in half precision.
    assert (states - expected).norm() < 2e-3 * expected.norm()
    assert (logits.log_softmax(-1) - scores.log_softmax(-1)).abs().max() < 0.02
    # A pass that is over at the key gives the same.
    assert torch.equal(key_states(engine, location, inputs), states)


def test_an_unknown_key_is_refused_with_those_that_there_are(pair):
    with pytest.raises(ModelError, match=r"no key 'mlp': use one of ffn_input, layer_output"):
        find_key(pair[1], "mlp")


@pytest.mark.parametrize(
    "text", [*TEXTS, "Grüße 東京 👍🏽 <|endoftext|> a<|endoftext|>", "", " \n"]
)
def test_text_is_cut_and_spelt_as_by_transformers(text, pair, tokenizer):
    mine = pair[1].tokenizer
    assert text_ids(mine, text) == text_ids(tokenizer, text)
    cut, expected = mine(text), tokenizer(text)
    assert cut["input_ids"] == expected["input_ids"]
    assert mine.decode(cut["input_ids"]) == text
    assert cut.encodings[0].offsets == expected.encodings[0].offsets
    assert tokenizer_record(mine).sha256 == tokenizer_record(tokenizer).sha256


def test_control_tokens_come_from_the_template_alone(folder, tokenizer):
    path = write_gguf(folder / "chat.gguf", tiny("llama"), tokenizer, template=TEMPLATE)
    cutter = open_gguf(path)[1]
    messages = [{"role": "user", "content": "a<|endoftext|>b"}]
    ids = chat_ids(cutter, messages, add_generation_prompt=True)
    assert ids.count(cutter.eos_token_id) == 2
    assert cutter.decode(ids) == "<|endoftext|>user: a<|endoftext|>b\n<|endoftext|>assistant:"


def test_a_cache_is_cut_and_goes_on(pair):
    model, ids = pair[1], ids_of(pair[1].tokenizer)
    whole = model(ids).logits
    first = model(ids[:, :20], use_cache=True)
    wrong = model(ids[:, :5], past_key_values=first.past_key_values, use_cache=True)
    wrong.past_key_values.crop(20)
    rest = model(ids[:, 20:], past_key_values=wrong.past_key_values).logits
    assert (rest - whole[:, 20:]).abs().max() < 0.01


def test_a_long_text_moves_to_a_larger_context(folder, tokenizer):
    model = tiny("llama")
    model.config.max_position_embeddings = 2048
    engine, cutter = open_gguf(write_gguf(folder / "long.gguf", model, tokenizer))
    ids = torch.tensor([cutter(" ".join(TEXTS * 4))["input_ids"]])[:, :700]
    whole = engine(ids).logits
    cache = engine(ids[:, :500], use_cache=True).past_key_values
    rest = engine(ids[:, 500:], past_key_values=cache).logits
    assert (rest - whole[:, 500:]).abs().max() < 0.01


def test_the_last_token_of_a_long_prompt_has_the_state_and_scores_of_a_whole_pass(pair):
    model = pair[1]
    ids, location = ids_of(model.tokenizer, " ".join(TEXTS * 2))[:, :300], find_key(model)
    states, scores = key_states_and_logits(model, location, {"input_ids": ids})
    inputs = {"input_ids": ids, "logits_to_keep": 1}
    state, score = key_states_and_logits(model, location, inputs)
    assert (state[:, -1] - states[:, -1]).abs().max() < 0.01
    assert (score[:, -1] - scores[:, -1]).abs().max() < 0.01


def test_rows_of_a_padded_batch_are_as_alone(pair):
    model, cutter = pair[1], pair[1].tokenizer
    texts = ["The crane", "Queen Maira founded the town of"]
    batch = cutter(texts, padding=True, padding_side="left", return_tensors="pt")
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    together = model.generate(**batch, **settings)[:, batch["input_ids"].shape[1] :]
    for row, text in zip(together, texts, strict=True):
        alone = cutter(text, return_tensors="pt")
        output = model.generate(**alone, **settings)[0, alone["input_ids"].shape[1] :]
        assert output.tolist() == row.tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_transformers(pair, beams):
    settings = {"max_new_tokens": 16, "do_sample": False, "num_beams": beams}
    outputs = [
        model.generate(**pair[1].tokenizer(TEXTS[1], return_tensors="pt"), **settings)
        for model in pair
    ]
    assert outputs[0].tolist() == outputs[1].tolist()


def test_samplers_stop_strings_and_seeds(pair):
    model, cutter = pair[1], pair[1].tokenizer
    inputs = cutter(TEXTS[2], return_tensors="pt")

    def written(**settings):
        torch.manual_seed(3)
        settings = {"max_new_tokens": 24, "do_sample": True, "eos_token_id": None} | settings
        output = model.generate(**inputs, **settings)
        return cutter.decode(output[0, inputs["input_ids"].shape[1] :])

    text = written(top_p=0.9, min_p=0.05, temperature=0.8)
    assert written(top_p=0.9, min_p=0.05, temperature=0.8) == text
    assert written() != written(top_k=1)
    stop = text[4:6]
    stopped = written(top_p=0.9, min_p=0.05, temperature=0.8, stop_strings=[stop], tokenizer=cutter)
    assert text.startswith(stopped)
    assert len(stopped) < len(text)
    assert stop in stopped


@pytest.mark.parametrize("sampled", [False, True])
def test_drafts_change_no_token(pair, store, sampled):
    from knn_logits import KNNLogitsProcessor

    model, texts, passes = pair[1], [], []
    inputs = model.tokenizer(TEXTS[0][:40], return_tensors="pt")
    for draft in (False, True):
        torch.manual_seed(0)
        with KNNLogitsProcessor(model, store, lmbda=0.7) as knn:
            output = knn.generate(
                **inputs, draft=draft, max_new_tokens=24, do_sample=sampled, top_k=20
            )
            texts.append(output[0].tolist())
            passes.append(knn.passes)
            trace = knn.trace(output, model.tokenizer)
    assert texts[0] == texts[1]
    assert passes[1] < passes[0]
    assert any(token.influence > 0.1 for token in trace[0].tokens)


def test_a_datastore_serves_both_engines(pair, tmp_path, tokenizer, folder, caplog):
    from knn_logits import Memory, add_documents, build_datastore

    documents = [Document(text=text, id=text[:9]) for text in TEXTS]
    store = build_datastore(pair[0], tokenizer, documents, tmp_path / "store", calibrate=False)
    small = open_gguf(write_gguf(folder / "q8.gguf", pair[0], tokenizer, quantised="Q8_0"))[0]
    Memory(small, store)
    assert "llama.gguf" not in caplog.text
    assert "transformers in float32 there, llama.cpp in Q8_0 here" in caplog.text
    with pytest.raises(MismatchError, match="add documents with the model that built it"):
        add_documents(small, small.tokenizer, store, [Document(text="More text.", id="more")])
    coarse = tiny("llama")
    for numbers in coarse.parameters():
        numbers.data += 0.6 * numbers.data.std() * torch.randn_like(numbers)
    path = write_gguf(folder / "coarse.gguf", coarse, tokenizer, quantised="Q8_0")
    with pytest.raises(MismatchError, match=r"was built by another model"):
        Memory(open_gguf(path)[0], store)


def test_an_interrupt_is_not_lost_in_the_callback(folder, pair, monkeypatch):
    """Python handles signals in the callback, whose exceptions do not pass through C."""
    real = context._tensors()

    def interrupted(tensor):
        signal.raise_signal(signal.SIGINT)
        return real.ggml_nbytes(tensor)

    functions = SimpleNamespace(
        ggml_get_name=real.ggml_get_name,
        ggml_nbytes=interrupted,
        ggml_backend_tensor_get=real.ggml_backend_tensor_get,
    )
    monkeypatch.setattr(context, "_tensors", lambda: functions)
    reading = context.Context(Weights(folder / "llama.gguf"), 64, ("ffn_norm-1",))
    with pytest.raises(KeyboardInterrupt):
        reading.read([1, 2, 3], 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_full_context_is_one_line(pair):
    model = pair[1]
    ids = ids_of(model.tokenizer, " ".join(TEXTS * 8))[:, :500]
    with pytest.raises(LimitError, match="context is 512"):
        model.generate(ids, max_new_tokens=40, do_sample=False, eos_token_id=None)


def test_what_is_no_gguf_file_is_refused(tmp_path, pair, folder):
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ModelError, match=r"llama\.cpp cannot read .*text\.gguf"):
        open_gguf(tmp_path / "text.gguf")
    whole = (folder / "llama.gguf").read_bytes()
    for size in (4, 40, 3000, len(whole) - 4096):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"llama\.cpp cannot read .*cut\.gguf"):
            open_gguf(tmp_path / "cut.gguf")


def test_a_name_means_a_file_or_a_folder_with_one(tmp_path):
    assert gguf_file("org/name") is None
    assert gguf_file(str(tmp_path)) is None
    (tmp_path / "a.gguf").touch()
    assert gguf_file(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ConfigError, match="contains 2 GGUF files"):
        gguf_file(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert gguf_file(str(tmp_path)) is None
    with pytest.raises(ModelError, match=r"there is no file nothing\.gguf"):
        gguf_file("nothing.gguf")


def test_without_llama_cpp_the_extra_is_named(pair, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "knn-logits\[gguf\]"'):
        context.llama.__wrapped__()
