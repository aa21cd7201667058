"""Writes small random models of transformers as GGUF files, with the package `gguf`."""

import numpy as np
import torch


def write_gguf(path, model, tokenizer, *, quantised=None, template=None, begins=False):
    """Writes a causal model and a byte-level BPE tokenizer; `quantised` is such as "Q8_0"."""
    import gguf

    config, kind = model.config, model.config.model_type
    architecture = {"llama": "LLAMA", "qwen2": "QWEN2", "gpt2": "GPT2", "gemma": "GEMMA"}
    architecture |= {"phi3": "PHI3"}
    family = getattr(gguf.MODEL_ARCH, architecture[kind])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[family])
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(10_000.0)
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        writer.add_rope_dimension_count(width)
        writer.add_key_length(width)
        writer.add_value_length(width)
    if kind == "phi3":
        writer.add_sliding_window(0)
    _write_tokenizer(writer, gguf, tokenizer, template, begins)
    names = gguf.get_tensor_name_map(family, layers)
    for name, numbers in _tensors(model, kind, heads):
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        array = np.ascontiguousarray(numbers.float().numpy())
        if quantised is None or array.ndim < 2:
            writer.add_tensor(target, array)
        else:
            form = getattr(gguf.GGMLQuantizationType, quantised)
            writer.add_tensor(target, gguf.quantize(array, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(writer, gguf, tokenizer, template, begins):
    size = len(tokenizer)
    special = set(tokenizer.all_special_ids)
    kinds = [3 if token in special else 1 for token in range(size)]  # CONTROL, NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(list(range(size))))
    writer.add_token_types(kinds)
    import json

    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(begins)
    if template is not None:
        writer.add_chat_template(template)


def _tensors(model, kind, heads):
    """The weights under transformers' names, as the converter of llama.cpp lays them out."""
    tied = model.config.tie_word_embeddings
    for name, numbers in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            rows = heads if ".q_proj" in name else model.config.num_key_value_heads
            shape = numbers.shape
            numbers = numbers.reshape(rows, 2, shape[0] // rows // 2, *shape[1:])
            numbers = numbers.swapaxes(1, 2).reshape(shape)
        if kind == "gpt2":
            if name.endswith((".attn.bias", ".attn.masked_bias")):
                continue
            if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                numbers = numbers.T
        if kind == "gemma" and name.endswith("norm.weight"):
            numbers = numbers + 1
        yield name, numbers


def tiny(kind, vocabulary=384, *, dim=64, layers=2, seed=0):
    """A random model of two layers."""
    from transformers import (
        AutoModelForCausalLM,
        GemmaConfig,
        GPT2Config,
        LlamaConfig,
        Phi3Config,
        Qwen2Config,
    )

    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": dim,
        "intermediate_size": 2 * dim,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    } | ends
    config = {
        "llama": lambda: LlamaConfig(**shape),
        "qwen2": lambda: Qwen2Config(**shape),
        "gemma": lambda: GemmaConfig(**shape, head_dim=dim // 4),
        "phi3": lambda: Phi3Config(**shape),
        "gpt2": lambda: GPT2Config(
            vocab_size=vocabulary, n_embd=dim, n_layer=layers, n_head=4, n_positions=512, **ends
        ),
    }[kind]()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    for numbers in model.parameters():  # random weights of the usual size all but repeat a token
        if numbers.dim() > 1:
            numbers.data *= 4
    return model
