"""The place of the key and the settings of a tiny model, for every model type that is tested."""

VOCABULARY = 384
WIDTH = 32

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

# The place of the key and the settings of a tiny model, by model type.
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
