"""Every model type of the table finds its key, gives its states, and generates with kNN exactly."""

import inspect

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
)

import knn_logits
from knn_logits.build.indexing import make_index, write_index
from knn_logits.capture.forward import key_states, key_states_and_logits
from knn_logits.capture.location import find_key, first_tensor
from knn_logits.compatibility import (
    CANARY_KEYS,
    CANARY_TOKENS,
    canary_keys,
    model_record,
    tokenizer_record,
    vocabulary_size,
)
from knn_logits.datastore import layout
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.manifest import (
    IndexRecord,
    KeyRecord,
    Manifest,
    SettingsRecord,
    WindowRecord,
)
from knn_logits.datastore.writer import (
    KeyWriter,
    TokenWriter,
    mark_finished,
    prepare_folder,
    record_files,
)

VOCABULARY = 384
WIDTH = 32
START = 1
NEW_TOKENS = 6
K = 32
LMBDA = 0.5
TEMPERATURE = 4.0
CLOSE = 1e-4

GPT2 = {"n_layer": 2, "n_embd": WIDTH, "n_head": 2, "n_positions": 128}
GPTJ = {**GPT2, "rotary_dim": 8}
PLAIN = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA = {**PLAIN, "num_key_value_heads": 1}
HEADS = {**LLAMA, "head_dim": 16}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
BART = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "dropout": 0.0,
}
T5 = {"d_model": WIDTH, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}

# Model type: where the key is, and the settings of a tiny model.
CAUSAL = {
    "gpt2": ("transformer.h.1.mlp", GPT2),
    "gpt_neo": (
        "transformer.h.1.mlp",
        {
            "hidden_size": WIDTH,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 128,
        },
    ),
    "gptj": ("transformer.h.1.mlp", GPTJ),
    "gpt_neox": ("gpt_neox.layers.1.mlp", PLAIN),
    "bloom": ("transformer.h.1.mlp", {"hidden_size": WIDTH, "n_layer": 2, "n_head": 2}),
    "falcon": ("transformer.h.1.mlp", PLAIN),
    "mpt": (
        "transformer.blocks.1.ffn",
        {"d_model": WIDTH, "n_heads": 2, "n_layers": 2, "max_seq_len": 128},
    ),
    "llama": ("model.layers.1.mlp", LLAMA),
    "mistral": ("model.layers.1.mlp", {**LLAMA, "sliding_window": 16}),
    "qwen2": ("model.layers.1.mlp", LLAMA),
    "qwen3": ("model.layers.1.mlp", HEADS),
    "gemma2": ("model.layers.1.mlp", {**HEADS, "sliding_window": 16, "query_pre_attn_scalar": 16}),
    "gemma3_text": (
        "model.layers.1.mlp",
        {**HEADS, "sliding_window": 16, "query_pre_attn_scalar": 16},
    ),
    "phi": ("model.layers.1.mlp", PLAIN),
    "phi3": ("model.layers.1.mlp", LLAMA),
    "stablelm": ("model.layers.1.mlp", LLAMA),
    "olmo": ("model.layers.1.mlp", LLAMA),
    "olmo2": ("model.layers.1.mlp", LLAMA),
    "mixtral": ("model.layers.1.mlp", {**LLAMA, **EXPERTS}),
    "qwen3_moe": (
        "model.layers.1.mlp",
        {**HEADS, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "gpt_oss": ("model.layers.1.mlp", {**HEADS, **EXPERTS, "sliding_window": 16}),
    "deepseek_v3": (
        "model.layers.1.mlp",
        {
            **PLAIN,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 24,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
        },
    ),
    "granite": ("model.layers.1.mlp", LLAMA),
    "cohere": ("model.layers.1.mlp", LLAMA),
    "smollm3": ("model.layers.1.mlp", LLAMA),
    "opt": (
        "model.decoder.layers.1.fc1",
        {
            "hidden_size": WIDTH,
            "word_embed_proj_dim": WIDTH,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 128,
        },
    ),
    # More
    "gpt_bigcode": ("transformer.h.1.mlp", GPT2),
    "codegen": ("transformer.h.1.mlp", {**GPTJ, "n_head": 4, "rotary_dim": 4}),
    "gemma": ("model.layers.1.mlp", HEADS),
    "starcoder2": ("model.layers.1.mlp", LLAMA),
    "olmoe": ("model.layers.1.mlp", {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}),
    "olmo3": ("model.layers.1.mlp", {**LLAMA, "sliding_window": 16}),
    "cohere2": ("model.layers.1.mlp", {**LLAMA, "sliding_window": 16}),
    "glm": ("model.layers.1.mlp", HEADS),
    "glm4": ("model.layers.1.mlp", HEADS),
    "nemotron": ("model.layers.1.mlp", LLAMA),
    "persimmon": ("model.layers.1.mlp", PLAIN),
    "qwen2_moe": (
        "model.layers.1.mlp",
        {
            **LLAMA,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "granitemoe": ("model.layers.1.block_sparse_moe", {**LLAMA, **EXPERTS}),
    "phimoe": ("model.layers.1.mlp", {**LLAMA, **EXPERTS}),
    "xglm": (
        "model.layers.1.fc1",
        {
            "d_model": WIDTH,
            "ffn_dim": 48,
            "num_layers": 2,
            "attention_heads": 2,
            "max_position_embeddings": 128,
            "dropout": 0.0,
        },
    ),
    "biogpt": ("biogpt.layers.1.fc1", PLAIN),
    "exaone4": ("model.layers.1.mlp", {**LLAMA, "sliding_window": 16}),
    "hunyuan_v1_dense": ("model.layers.1.mlp", HEADS),
    "ernie4_5": ("model.layers.1.mlp", HEADS),
    "helium": ("model.layers.1.mlp", HEADS),
    "arcee": ("model.layers.1.mlp", LLAMA),
    "seed_oss": ("model.layers.1.mlp", HEADS),
    "bitnet": ("model.layers.1.mlp", LLAMA),
    "lfm2": ("model.layers.1.feed_forward", {**LLAMA, "layer_types": ["conv", "full_attention"]}),
    "mamba": (
        "backbone.layers.1.mixer",
        {"hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 8},
    ),
    "ctrl": ("transformer.h.1.ffn", GPT2),
    "jamba": (
        "model.layers.1.feed_forward",
        {
            **LLAMA,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "use_mamba_kernels": False,
        },
    ),
}
SEQ2SEQ = {
    "bart": ("model.decoder.layers.1.fc1", BART),
    "marian": ("model.decoder.layers.1.fc1", BART),
    "mbart": ("model.decoder.layers.1.fc1", BART),
    "m2m_100": ("model.decoder.layers.1.fc1", BART),
    "t5": ("decoder.block.1.layer.2.DenseReluDense", T5),
    "mt5": ("decoder.block.1.layer.2.DenseReluDense", T5),
    "umt5": ("decoder.block.1.layer.2.DenseReluDense", T5),
    "longt5": ("decoder.block.1.layer.2.DenseReluDense", T5),
    "switch_transformers": (
        "decoder.block.1.layer.2.mlp",
        {**T5, "num_decoder_layers": 2, "num_experts": 2},
    ),
    "pegasus": ("model.decoder.layers.1.fc1", BART),
    "blenderbot": ("model.decoder.layers.1.fc1", BART),
    "blenderbot-small": ("model.decoder.layers.1.fc1", BART),
    "led": (
        "led.decoder.layers.1.fc1",
        {
            **BART,
            "attention_window": 8,
            "max_encoder_position_embeddings": 128,
            "max_decoder_position_embeddings": 128,
        },
    ),
    "plbart": ("model.decoder.layers.1.fc1", BART),
    "mvp": ("model.decoder.layers.1.fc1", BART),
}
PATHS = {kind: path for kind, (path, _) in (CAUSAL | SEQ2SEQ).items()}


def make(kind):
    """A tiny model of a type; its random weights are large, so that tokens differ."""
    _, settings = (CAUSAL | SEQ2SEQ)[kind]
    torch.manual_seed(len(kind))
    config = AutoConfig.for_model(
        kind,
        **settings,
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
    model.generation_config = GenerationConfig(
        pad_token_id=0, bos_token_id=0, decoder_start_token_id=START
    )
    return model


def some_ids(rows, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (rows, tokens), generator=generator)


def forward_inputs(kind, target, source=None):
    """What a forward pass of this type takes to predict what follows `target`."""
    if kind in SEQ2SEQ:
        return {"input_ids": source, "decoder_input_ids": target}
    return {"input_ids": target}


def sources_for(kind, rows):
    return some_ids(rows, 9, seed=2) if kind in SEQ2SEQ else None


def write_datastore(model, kind, tokenizer, folder):
    """A datastore of random texts, written by hand: a key is the state, a value the next token."""
    location = find_key(model)
    texts = some_ids(16, 17)
    texts[:, 0] = START
    states = key_states(
        model, location, forward_inputs(kind, texts[:, :-1], sources_for(kind, len(texts)))
    )
    prepare_folder(folder, overwrite=False)
    vocabulary = vocabulary_size(model)
    with TokenWriter(folder, concatenate=False, vocabulary=vocabulary) as tokens:
        for number, text in enumerate(texts.tolist()):
            tokens.add(text, id=str(number))
    keys = states.reshape(-1, states.shape[-1]).numpy()
    writer = KeyWriter(folder, keys.shape[1], "float32", len(keys))
    writer.append(keys)
    writer.flush()
    manifest = Manifest(
        created_with=knn_logits.__version__,
        model=model_record(model),
        tokenizer=tokenizer_record(tokenizer),
        key=KeyRecord(name=location.name, module=location.module, side=location.side),
        entries=len(keys),
        documents=len(texts),
        tokens=texts.numel(),
        dim=keys.shape[1],
        dtype="float32",
        windows=WindowRecord(window=16, stride=16),
        index=IndexRecord(factory="exact", requested="exact"),
        settings=SettingsRecord(k=K, lmbda=LMBDA, temperature=TEMPERATURE),
        files=record_files(folder),
    )
    store = knn_logits.Datastore.unfinished(folder, manifest)
    index, record = make_index(store, knn_logits.IndexConfig("exact"))
    write_index(store, index, record)
    canary = texts[0].numpy().astype(np.int32)
    write_arrays(
        folder / layout.CHECKS,
        {CANARY_TOKENS: canary, CANARY_KEYS: canary_keys(model, location, canary)},
        {},
    )
    manifest.model_copy(update={"index": record, "files": record_files(folder)}).write(folder)
    mark_finished(folder)
    return knn_logits.Datastore(folder)


def mixture(store, state, logits):
    """The mixture's log-probabilities of one position, in float64, with exact neighbors."""
    keys = store.keys(np.arange(len(store))).astype(np.float64)
    distances = ((keys - state.double().numpy()) ** 2).sum(-1)
    nearest = np.argsort(distances)[:K]
    weights = torch.softmax(torch.from_numpy(-distances[nearest] / TEMPERATURE), -1)
    votes = torch.zeros(len(logits), dtype=torch.float64)
    votes.index_add_(0, store.values[nearest].long(), weights)
    own = torch.softmax(logits.double(), -1)
    return (LMBDA * votes + (1 - LMBDA) * own).log(), own.log()


@pytest.fixture(scope="module", params=[*CAUSAL, *SEQ2SEQ])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    return make(kind)


def test_key_is_where_reading_says(model, kind):
    location = find_key(model)

    assert (location.module, location.side) == (PATHS[kind], "input")


def test_key_states_are_what_enters_the_module(model, kind):
    location = find_key(model)
    target, source = some_ids(2, 11, seed=3), sources_for(kind, 2)
    inputs = forward_inputs(kind, target, source)
    seen = []
    module = model.get_submodule(PATHS[kind])
    handle = module.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(first_tensor(args, kwargs).clone()), with_kwargs=True
    )
    with torch.no_grad():
        model(**inputs)
    handle.remove()

    states = key_states(model, location, inputs)

    assert states.shape == (2, 11, WIDTH)
    torch.testing.assert_close(states.flatten(), seen[-1].flatten())
    # Rows stay rows where a model flattens them.
    alone = forward_inputs(kind, target[1:], None if source is None else source[1:])
    torch.testing.assert_close(states[1:], key_states(model, location, alone))


def test_generates_with_the_exact_mixture(model, kind, tokenizer, tmp_path):
    store = write_datastore(model, kind, tokenizer, tmp_path / "store")
    texts = some_ids(16, 17)
    lengths = [9, 6]
    prompts = [texts[row, 1 : 1 + length] for row, length in enumerate(lengths)]
    ids = torch.zeros(2, 9, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        # A source is padded on the right, a prompt on the left.
        part = slice(0, len(prompt)) if kind in SEQ2SEQ else slice(9 - len(prompt), None)
        ids[row, part], mask[row, part] = prompt, 1

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
    gain = 0.0
    worst = 0.0
    for row, prompt in enumerate(prompts):
        made = output.sequences[row, -NEW_TOKENS:]
        before = output.sequences[row, :1] if kind in SEQ2SEQ else prompt
        whole = torch.cat([before, made])[None]
        inputs = forward_inputs(kind, whole, prompt[None])
        states, logits = key_states_and_logits(model, find_key(model), inputs)
        for step, token in enumerate(made.tolist()):
            place = len(before) - 1 + step
            expected, own = mixture(store, states[0, place], logits[0, place])
            used = torch.log_softmax(output.scores[step][row].double(), -1)
            worst = max(worst, float((expected - used)[token].abs()))
            gain = max(gain, float((expected - own)[token].abs()))
    print(kind, worst, gain)
    assert worst < CLOSE
    # Without the neighbors the numbers are others.
    assert gain > 100 * CLOSE
