"""Every model type of the table finds its key, gives its states, and generates with kNN exactly."""

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import knn_logits
from knn_logits.capture.forward import key_states, key_states_and_logits
from knn_logits.capture.location import find_key
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
# All entries: at the edge of a smaller k, rounding could change who votes.
K = 256
LMBDA = 0.5
TEMPERATURE = 4.0

GPT2 = {"n_layer": 2, "n_embd": WIDTH, "n_head": 2, "n_positions": 128}
PLAIN = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA = {**PLAIN, "num_key_value_heads": 1}
HEADS = {**LLAMA, "head_dim": 16}
SLIDING = {"sliding_window": 16}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
DEEPSEEK = {
    **PLAIN,
    **ROUTED,
    "num_key_value_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
STATE_SPACE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 8}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
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
    "gptj": ("transformer.h.1.mlp", {**GPT2, "rotary_dim": 8}),
    "gpt_neox": ("gpt_neox.layers.1.mlp", PLAIN),
    "bloom": ("transformer.h.1.mlp", {"hidden_size": WIDTH, "n_layer": 2, "n_head": 2}),
    "falcon": ("transformer.h.1.mlp", PLAIN),
    "mpt": (
        "transformer.blocks.1.ffn",
        {"d_model": WIDTH, "n_heads": 2, "n_layers": 2, "max_seq_len": 128},
    ),
    "llama": ("model.layers.1.mlp", LLAMA),
    "mistral": ("model.layers.1.mlp", {**LLAMA, **SLIDING}),
    "qwen2": ("model.layers.1.mlp", LLAMA),
    "qwen3": ("model.layers.1.mlp", HEADS),
    "gemma2": ("model.layers.1.mlp", {**HEADS, **SLIDING, "query_pre_attn_scalar": 16}),
    "gemma3_text": (
        "model.layers.1.mlp",
        {**HEADS, **SLIDING, "query_pre_attn_scalar": 16},
    ),
    "phi": ("model.layers.1.mlp", PLAIN),
    "phi3": ("model.layers.1.mlp", LLAMA),
    "stablelm": ("model.layers.1.mlp", LLAMA),
    "olmo": ("model.layers.1.mlp", LLAMA),
    "olmo2": ("model.layers.1.mlp", LLAMA),
    "mixtral": ("model.layers.1.mlp", {**LLAMA, **EXPERTS}),
    "qwen3_moe": ("model.layers.1.mlp", {**HEADS, **QWEN_EXPERTS}),
    "gpt_oss": ("model.layers.1.mlp", {**HEADS, **EXPERTS, **SLIDING}),
    "deepseek_v3": ("model.layers.1.mlp", DEEPSEEK),
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
    "apertus": ("model.layers.1.mlp", LLAMA),
    "arcee": ("model.layers.1.mlp", LLAMA),
    "bamba": ("model.layers.1.feed_forward", {**LLAMA, **MAMBA, "attn_layer_indices": [1]}),
    "biogpt": ("biogpt.layers.1.fc1", PLAIN),
    "bitnet": ("model.layers.1.mlp", LLAMA),
    "codegen": ("transformer.h.1.mlp", {**GPT2, "n_head": 4, "rotary_dim": 4}),
    "cohere2": ("model.layers.1.mlp", {**LLAMA, **SLIDING}),
    "cwm": ("model.layers.1.mlp", {**HEADS, **SLIDING}),
    "deepseek_v2": ("model.layers.1.mlp", DEEPSEEK),
    "diffllama": (
        "model.layers.1.mlp",
        {**PLAIN, "num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "doge": ("model.layers.1.mlp", LLAMA),
    "dots1": ("model.layers.1.mlp", {**HEADS, **ROUTED, "n_shared_experts": 1}),
    "ernie4_5": ("model.layers.1.mlp", HEADS),
    "ernie4_5_moe": (
        "model.layers.1.mlp",
        {**LLAMA, "moe_intermediate_size": 24, "moe_num_experts": 4, "moe_k": 2},
    ),
    "exaone4": ("model.layers.1.mlp", {**LLAMA, **SLIDING}),
    "falcon_h1": (
        "model.layers.1.feed_forward",
        {**HEADS, **MAMBA, "mamba_d_ssm": 64},
    ),
    "falcon_mamba": ("backbone.layers.1.mixer", STATE_SPACE),
    "flex_olmo": ("model.layers.1.mlp", {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("model.layers.1.mlp", HEADS),
    "gemma3n_text": (
        "model.layers.1.mlp",
        {
            **HEADS,
            **SLIDING,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 0,
            "altup_num_inputs": 2,
            "laurel_rank": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "activation_sparsity_pattern": None,
        },
    ),
    "gemma4_text": ("model.layers.1.mlp", {**HEADS, **SLIDING, "hidden_size_per_layer_input": 0}),
    "glm": ("model.layers.1.mlp", HEADS),
    "glm4": ("model.layers.1.mlp", HEADS),
    "glm4_moe": ("model.layers.1.mlp", {**HEADS, **ROUTED}),
    "glm4_moe_lite": ("model.layers.1.mlp", DEEPSEEK),
    "gpt_bigcode": ("transformer.h.1.mlp", GPT2),
    "granitemoe": ("model.layers.1.block_sparse_moe", {**LLAMA, **EXPERTS}),
    "granitemoehybrid": (
        "model.layers.1.block_sparse_moe",
        {
            **LLAMA,
            **EXPERTS,
            **MAMBA,
            "shared_intermediate_size": 24,
            "layer_types": ["mamba", "attention"],
        },
    ),
    "granitemoeshared": (
        "model.layers.1.block_sparse_moe",
        {**LLAMA, **EXPERTS, "shared_intermediate_size": 24},
    ),
    "helium": ("model.layers.1.mlp", HEADS),
    "hunyuan_v1_dense": ("model.layers.1.mlp", HEADS),
    "hunyuan_v1_moe": ("model.layers.1.mlp", {**HEADS, "num_experts": 4, "moe_topk": 2}),
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
    "jetmoe": (
        "model.layers.1.mlp",
        {
            **EXPERTS,
            "hidden_size": WIDTH,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "kv_channels": 16,
            "max_position_embeddings": 128,
        },
    ),
    "lfm2": ("model.layers.1.feed_forward", {**LLAMA, "layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": (
        "model.layers.1.feed_forward",
        {
            **LLAMA,
            "moe_intermediate_size": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention"],
        },
    ),
    "llama4_text": (
        "model.layers.1.feed_forward",
        {**HEADS, **EXPERTS, "intermediate_size_mlp": 48, "attention_chunk_size": 16},
    ),
    "mamba": ("backbone.layers.1.mixer", STATE_SPACE),
    "mamba2": (
        "backbone.layers.1.mixer",
        {**STATE_SPACE, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    ),
    "ministral": ("model.layers.1.mlp", {**HEADS, **SLIDING}),
    "ministral3": ("model.layers.1.mlp", HEADS),
    "modernbert-decoder": ("model.layers.1.mlp", {**PLAIN, "local_attention": 16}),
    "nanochat": ("model.layers.1.mlp", LLAMA),
    "nemotron": ("model.layers.1.mlp", LLAMA),
    "nemotron_h": (
        "model.layers.1.mixer",
        {**LLAMA, "layers_block_type": ["attention", "mlp"]},
    ),
    "olmo3": ("model.layers.1.mlp", {**LLAMA, **SLIDING}),
    "olmo_hybrid": ("model.layers.1.mlp", {**HEADS, **LINEAR}),
    "olmoe": ("model.layers.1.mlp", {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}),
    "persimmon": ("model.layers.1.mlp", PLAIN),
    "phimoe": ("model.layers.1.mlp", {**LLAMA, **EXPERTS}),
    "qwen2_moe": (
        "model.layers.1.mlp",
        {**LLAMA, **QWEN_EXPERTS, "shared_expert_intermediate_size": 24},
    ),
    "qwen3_5_text": ("model.layers.1.mlp", {**HEADS, **LINEAR}),
    "qwen3_next": (
        "model.layers.1.mlp",
        {**HEADS, **QWEN_EXPERTS, **LINEAR, "shared_expert_intermediate_size": 24},
    ),
    "seed_oss": ("model.layers.1.mlp", HEADS),
    "starcoder2": ("model.layers.1.mlp", LLAMA),
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
    "bigbird_pegasus": ("model.decoder.layers.1.fc1", {**BART, "attention_type": "original_full"}),
    "nllb-moe": (
        "model.decoder.layers.1.ffn",
        {
            **BART,
            "num_experts": 4,
            "expert_capacity": 64,
            "encoder_sparse_step": 2,
            "decoder_sparse_step": 2,
        },
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
TABLE = CAUSAL | SEQ2SEQ

TEXTS = [
    "A crane lifts twelve crates an hour. When its cable jams, open the cover and clear the drum.",
    "The keeper reads the barometer each morning, and each evening he lights the lamp again.",
    "In 1312 the town had no walls. They were built after the flood of 1319, of grey stone.",
    "Pump 4 needs oil of grade 7; pump 9 needs oil of grade 12, never of grade 7.",
]


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


def some_ids(rows, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=generator)


def forward_inputs(kind, text, source):
    """What a forward pass of this type takes, to predict what follows `text`."""
    if kind in SEQ2SEQ:
        return {"input_ids": source, "decoder_input_ids": text}
    return {"input_ids": text}


def build(model, kind, tokenizer, folder):
    """A datastore of the model's own states."""
    if kind in SEQ2SEQ:
        return write_pairs(model, tokenizer, folder)
    return knn_logits.build_datastore(
        model,
        tokenizer,
        TEXTS,
        folder,
        window=knn_logits.WindowConfig(64, 32),
        keys_dtype="float32",
        k=K,
        lmbda=LMBDA,
        temperature=TEMPERATURE,
    )


def write_pairs(model, tokenizer, folder):
    """A datastore of random sources and targets, which `build_datastore` does not make."""
    location = find_key(model)
    sources, targets = some_ids(12, 9, seed=1), some_ids(12, 16, seed=2)
    targets[:, 0] = START
    states = key_states(model, location, forward_inputs("bart", targets[:, :-1], sources))
    keys = states.reshape(-1, states.shape[-1]).numpy()
    prepare_folder(folder, overwrite=False)
    vocabulary = vocabulary_size(model)
    with TokenWriter(folder, concatenate=False, vocabulary=vocabulary) as tokens:
        for number, target in enumerate(targets.tolist()):
            tokens.add(target, id=str(number))
    writer = KeyWriter(folder, keys.shape[1], "float32", len(keys))
    writer.append(keys)
    writer.flush()
    canary = targets[0].numpy().astype(np.int32)
    write_arrays(
        folder / layout.CHECKS,
        {CANARY_TOKENS: canary, CANARY_KEYS: canary_keys(model, location, canary)},
        {},
    )
    Manifest(
        created_with=knn_logits.__version__,
        model=model_record(model),
        tokenizer=tokenizer_record(tokenizer),
        key=KeyRecord(name=location.name, module=location.module, side=location.side),
        entries=len(keys),
        documents=len(targets),
        tokens=targets.numel(),
        dim=keys.shape[1],
        dtype="float32",
        windows=WindowRecord(window=16, stride=16),
        index=IndexRecord(factory="exact", requested="exact"),
        settings=SettingsRecord(k=K, lmbda=LMBDA, temperature=TEMPERATURE),
        files=record_files(folder),
    ).write(folder)
    mark_finished(folder)
    return knn_logits.Datastore(folder)


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


@pytest.fixture(scope="module", params=list(TABLE))
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


def test_key_states_are_what_enters_the_module(model, kind):
    text, source = some_ids(2, 11, seed=3), some_ids(2, 9, seed=4)
    seen = []
    handle = model.get_submodule(TABLE[kind][0]).register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((*args, *kwargs.values())[0]), with_kwargs=True
    )
    with torch.no_grad():
        model(**forward_inputs(kind, text, source))
    handle.remove()

    states = key_states(model, find_key(model), forward_inputs(kind, text, source))

    assert states.shape == (2, 11, WIDTH)
    torch.testing.assert_close(states.flatten(), seen[-1].flatten(), rtol=1e-4, atol=1e-4)
    # OPT flattens the rows of a batch: they have to come apart again.
    alone = key_states(model, find_key(model), forward_inputs(kind, text[1:], source[1:]))
    torch.testing.assert_close(states[1:], alone, rtol=1e-4, atol=1e-4)


def test_generate_uses_the_exact_mixture(model, kind, tokenizer, tmp_path):
    store = build(model, kind, tokenizer, tmp_path / "store")
    if kind in SEQ2SEQ:
        prompts = [some_ids(1, 9, seed=1)[0], some_ids(1, 6, seed=1)[0]]
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
        inputs = forward_inputs(kind, text[None], prompt[None])
        states, logits = key_states_and_logits(model, find_key(model), inputs)
        for step in range(NEW_TOKENS):
            place = len(text) - NEW_TOKENS + step
            expected, own = mixture(store, states[0, place - 1], logits[0, place - 1])
            used = torch.log_softmax(output.scores[step][row].double(), -1).numpy()
            assert np.abs(used - expected).max() < 1e-4
            assert used.argmax() == text[place]
            largest_change = max(largest_change, np.abs(expected - own).max())
    assert largest_change > 0.1
