"""Reads the arguments of `generate()`: which settings hold, and whether drafts can be used."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers import StopStringCriteria

from knn_logits.errors import ConfigError


def is_ids(value: Any) -> bool:
    """Whether something is a tensor of tokens, whole numbers [rows, length]."""
    return isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point()


def checked_ids(arguments: dict[str, Any]) -> Tensor | None:
    """Returns the ids of the prompt in arguments of `generate()`; None if there are none."""
    ids: Tensor | None = arguments.get("input_ids")
    if ids is not None and not is_ids(ids):
        raise ConfigError(
            f"the prompt must be a tensor of ids [rows, length], not {type(ids).__name__}: call "
            'generate(**tokenizer(text, return_tensors="pt"))'
        )
    return ids


def with_defaults(arguments: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Adds settings that hold unless a call of `generate()` has its own."""
    defaults = {name: value for name, value in defaults.items() if name not in arguments}
    config_argument = arguments.get("generation_config")
    if config_argument is None:
        return defaults | arguments
    # transformers deprecates arguments beside such an object.
    config = copy.deepcopy(config_argument)
    for name, value in defaults.items():
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    return arguments | {"generation_config": config}


def arguments_for_drafts(model: Any, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments with which `generate()` writes a text with drafts; None for no drafts.

    The criterion that `stop_strings` stands for takes its place.
    """
    strings, tokenizer = arguments.get("stop_strings"), arguments.get("tokenizer")
    if strings is not None and tokenizer is not None:
        stop = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
        criteria = [*(arguments.get("stopping_criteria") or ()), stop]
        arguments = arguments | {"stopping_criteria": criteria}
        del arguments["stop_strings"], arguments["tokenizer"]
    # The settings that the arguments leave open are the model's.
    settings: dict[str, Any] = {}
    for config in (getattr(model, "generation_config", None), arguments.get("generation_config")):
        values = {} if config is None else config.to_dict()
        settings |= {name: value for name, value in values.items() if value is not None}
    settings |= arguments
    return arguments if can_draft(model, arguments.get("input_ids"), settings) else None


def can_draft(model: Any, input_ids: Any, settings: dict[str, Any]) -> bool:
    """Whether a text can be written with drafts."""
    if not isinstance(input_ids, Tensor) or len(input_ids) != 1 or model.config.is_encoder_decoder:
        return False
    if not callable(getattr(model, "_sample", None)) or getattr(model, "_is_stateful", False):
        return False
    types = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if any(layer != "full_attention" for layer in types):
        return False
    if getattr(model.config.get_text_config(), "sliding_window", None) and not types:
        return False
    mask = settings.get("attention_mask")
    if isinstance(mask, Tensor) and not bool(mask.all()):
        return False
    for name, plain in (
        ("num_beams", 1),
        ("num_return_sequences", 1),
        ("num_beam_groups", 1),
        ("use_cache", True),
        ("guidance_scale", 1.0),
        ("output_attentions", False),
        ("output_hidden_states", False),
        ("token_healing", False),
    ):
        if settings.get(name, plain) not in (None, plain):
            return False
    excluded = (
        "assistant_model",
        "cache_implementation",
        "constraints",
        "custom_generate",
        "dola_layers",
        "force_words_ids",
        "inputs_embeds",
        "past_key_values",
        "penalty_alpha",
        "prompt_lookup_num_tokens",
        "stop_strings",
    )
    return all(settings.get(name) is None for name in excluded)
