"""Keeps the input of a model's last feed-forward network, the default key, for a pass of vLLM.

The model copies it into a buffer. The copy is a part of the model's graph, and the buffer has one
address for good, so a CUDA graph that is replayed fills it as well. With tensor parallelism, each
process has the whole input, since attention ends with an all-reduce.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knn_logits.engine.hooks import first_tensor
from knn_logits.engine.location import breadth_first, feed_forward
from knn_logits.errors import ModelError


def keep_ffn_input(runner: Any) -> None:
    """Adds the copy to a runner's model, which has its weights and is not compiled yet.

    `runner.knn_states` is the buffer, [tokens, dim], with the tokens of a pass in vLLM's order.

    Raises:
        ModelError: when the model has no such place, or does not pass every token there.
    """
    ffn = _last_ffn(runner)
    shape = (runner.max_num_tokens, runner.model_config.get_hidden_size())
    buffer = torch.zeros(shape, dtype=runner.model_config.dtype, device=runner.device)
    ffn.register_buffer("knn_states", buffer, persistent=False)
    ffn.register_forward_pre_hook(_keep, with_kwargs=True)
    runner.knn_states = buffer
    # vLLM's cache of compiled models does not look at hooks.
    runner.vllm_config.additional_config["knn_logits"] = "ffn_input"


def _keep(ffn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    states: Tensor = first_tensor(args, kwargs)
    states = states.reshape(-1, states.shape[-1])
    ffn.knn_states[: states.shape[0]].copy_(states)


def _last_ffn(runner: Any) -> nn.Module:
    model, config = runner.get_model(), runner.vllm_config
    advice = "build the datastore with --key head_input"
    parallel = config.parallel_config
    if (
        parallel.enable_dbo
        or parallel.use_sequence_parallel_moe
        or config.cache_config.kv_sharing_fast_prefill
    ):
        raise ModelError(
            "with enable_dbo, kv_sharing_fast_prefill or sequence-parallel experts, the tokens of "
            f"a pass do not reach the last feed-forward network together: {advice}"
        )
    if hasattr(model, "get_language_model"):
        model = model.get_language_model()
    layers = runner.model_config.hf_text_config.num_hidden_layers
    for module in breadth_first(model):
        if isinstance(module, nn.ModuleList) and len(module) == layers:
            try:
                return feed_forward(model, module[-1])
            except ModelError:
                break
    raise ModelError(
        f"the last layer of vLLM's {type(model).__name__} has no known feed-forward network: "
        f"{advice}"
    )
