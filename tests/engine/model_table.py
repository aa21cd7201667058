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

MLP = "model.layers.1.mlp"
GPT2_MLP = "transformer.h.1.mlp"
FEED_FORWARD = "model.layers.1.feed_forward"
FC1 = "model.decoder.layers.1.fc1"
DENSE = "decoder.block.1.layer.2.DenseReluDense"


def alike(types, place, settings):
    return dict.fromkeys(types.split(), (place, settings))


# The place of the key and the settings of a tiny model, by model type.
CAUSAL = {
    **alike("gpt2 gpt_bigcode", GPT2_MLP, GPT2),
    "gptj": (GPT2_MLP, {**GPT2, "rotary_dim": 8}),
    "gpt_neox": ("gpt_neox.layers.1.mlp", PLAIN),
    "bloom": (GPT2_MLP, {"hidden_size": WIDTH, "n_layer": 2, "n_head": 2}),
    "falcon": (GPT2_MLP, PLAIN),
    "mpt": (
        "transformer.blocks.1.ffn",
        {"d_model": WIDTH, "n_heads": 2, "n_layers": 2, "max_seq_len": 128},
    ),
    **alike(
        "llama qwen2 phi3 stablelm olmo olmo2 granite cohere smollm3 apertus arcee bitnet "
        "doge nanochat nemotron starcoder2",
        MLP,
        LLAMA,
    ),
    **alike("mistral cohere2 exaone4 olmo3", MLP, {**LLAMA, **SLIDING}),
    **alike(
        "qwen3 ernie4_5 gemma glm glm4 helium hunyuan_v1_dense ministral3 seed_oss", MLP, HEADS
    ),
    **alike("gemma2 gemma3_text", MLP, {**HEADS, **SLIDING, "query_pre_attn_scalar": 16}),
    **alike("phi persimmon", MLP, PLAIN),
    **alike("mixtral phimoe", MLP, {**LLAMA, **EXPERTS}),
    "qwen3_moe": (MLP, {**HEADS, **QWEN_EXPERTS}),
    "gpt_oss": (MLP, {**HEADS, **EXPERTS, **SLIDING}),
    **alike("deepseek_v3 deepseek_v2 glm4_moe_lite", MLP, DEEPSEEK),
    "opt": (
        FC1,
        {
            "hidden_size": WIDTH,
            "word_embed_proj_dim": WIDTH,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 128,
        },
    ),
    "falcon_h1": (FEED_FORWARD, {**HEADS, **MAMBA, "mamba_d_ssm": 64}),
    **alike("falcon_mamba mamba", "backbone.layers.1.mixer", STATE_SPACE),
    "olmoe": (MLP, {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}),
    "gemma3n_text": (
        MLP,
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
    "granitemoe": ("model.layers.1.block_sparse_moe", {**LLAMA, **EXPERTS}),
    "lfm2": (FEED_FORWARD, {**LLAMA, "layer_types": ["conv", "full_attention"]}),
    "llama4_text": (
        FEED_FORWARD,
        {**HEADS, **EXPERTS, "intermediate_size_mlp": 48, "attention_chunk_size": 16},
    ),
    "modernbert-decoder": (MLP, {**PLAIN, "local_attention": 16}),
    **alike("olmo_hybrid qwen3_5_text", MLP, {**HEADS, **LINEAR}),
    "qwen3_next": (MLP, {**HEADS, **QWEN_EXPERTS, **LINEAR, "shared_expert_intermediate_size": 24}),
}
SEQ2SEQ = {
    **alike("bart marian mbart m2m_100 pegasus blenderbot blenderbot-small plbart mvp", FC1, BART),
    **alike("t5 mt5 umt5 longt5", DENSE, T5),
}
TABLE = CAUSAL | SEQ2SEQ
