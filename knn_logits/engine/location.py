"""Finds the place of the key in a model, by a rule about its structure or by a given name.

The default is the input of the last decoder layer's feed-forward network, after its layer norm.
It was the best place in the comparison of Khandelwal et al. (2020), section 5 ("Key function"). No
model type is known by name here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from knn_logits.errors import ConfigError, ModelError

Side = Literal["input", "output"]
DEFAULT_KEY = "ffn_input"

# The names are tried in this order. A layer of experts also has "mlp" modules, but deeper inside.
_FEED_FORWARD_NAMES = (
    "mlp",
    "ffn",
    "feed_forward",
    "block_sparse_moe",
    "DenseReluDense",
    "mixer",
    "fc1",
)
_ADVICE = "`model.named_modules()` lists them"


@dataclass(frozen=True)
class KeyLocation:
    """A module and one side of it. The tensor that passes there holds the key of each token."""

    name: str
    module: str
    side: Side

    def __str__(self) -> str:
        return f"{self.module}:{self.side}"


def decoder_of(model: nn.Module) -> nn.Module:
    can_generate = getattr(model, "can_generate", None)
    get_decoder = getattr(model, "get_decoder", None)
    decoder = get_decoder() if callable(get_decoder) else None
    if isinstance(decoder, nn.Module) and next(decoder.children(), None) is None:
        # Some models call their head "decoder".
        decoder = getattr(model, "base_model", None)
    if not isinstance(decoder, nn.Module) or (callable(can_generate) and not can_generate()):
        raise ModelError(
            f"{type(model).__name__} has no decoder: load a causal or encoder-decoder language "
            "model (AutoModelForCausalLM, AutoModelForSeq2SeqLM)"
        )
    return decoder


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model reads a source with one stack and writes with another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def find_key(model: nn.Module, name: str = DEFAULT_KEY) -> KeyLocation:
    """Resolves the name of a key to a module of this model."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a transformers model, not {type(model).__name__}")
    named: Any = getattr(model, "find_key", None)  # an engine names the places of its keys itself
    if named is not None:
        return KeyLocation(name, named(name), "output")
    if name == "head_input":
        return KeyLocation(name, _path_of_states(model), "output")
    if name in ("ffn_input", "layer_output"):
        layer = _last_layer(model)
        if name == "layer_output":
            return KeyLocation(name, _path_of(model, layer), "output")
        return KeyLocation(name, _path_of(model, feed_forward(model, layer)), "input")
    path, colon, side = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not colon or not path or side not in ("input", "output"):
        raise ConfigError(
            f"key {name!r}: use 'ffn_input', 'layer_output', 'head_input', or a module's path "
            "followed by ':input' or ':output', such as 'transformer.h.5.mlp:input'"
        )
    modules = dict(model.named_modules())
    if path not in modules:
        raise ModelError(f"{type(model).__name__} has no module {path!r}; {_ADVICE}")
    if not any(module is modules[path] for module in decoder_of(model).modules()):
        raise ModelError(
            f"{path} is not in the decoder of {type(model).__name__}, which keys are taken from; "
            f"{_ADVICE}"
        )
    return KeyLocation(name, path, "input" if side == "input" else "output")


def _last_layer(model: nn.Module) -> nn.Module:
    # Half a second, which a model of another engine does not need.
    from transformers.modeling_layers import GradientCheckpointingLayer

    decoder = decoder_of(model)
    for module in breadth_first(decoder):
        if isinstance(module, nn.ModuleList) and len(module):
            last = getattr(module[-1], "_orig_mod", module[-1])  # that of torch.compile(layer)
            if isinstance(last, GradientCheckpointingLayer):
                return last
    raise ModelError(
        f"the decoder of {type(model).__name__} has no known list of layers; set the key with "
        f"--key (key= in Python); {_ADVICE}"
    )


def _path_of_states(model: nn.Module) -> str:
    """The decoder, whose output the head reads. `generate()` gives the head the last state only."""
    decoder = decoder_of(model)
    if decoder is model:
        raise ModelError(
            f"{type(model).__name__} computes states and scores in one module, so the input of its "
            "head cannot be taken; use another key"
        )
    return _path_of(model, decoder)


def feed_forward(model: nn.Module, layer: nn.Module) -> nn.Module:
    level = [layer]
    while level:
        children = [child for module in level for child in module.named_children()]
        for name in _FEED_FORWARD_NAMES:
            for child_name, child in children:
                if child_name == name:
                    return child
        level = [child for _, child in children]
    raise ModelError(
        f"the last layer of {type(model).__name__} has no known feed-forward network; set the "
        f"key with --key (key= in Python); {_ADVICE}"
    )


def breadth_first(root: nn.Module) -> Iterator[nn.Module]:
    level = [root]
    while level:
        yield from level
        level = [child for module in level for child in module.children()]


def _path_of(model: nn.Module, target: nn.Module) -> str:
    for path, module in model.named_modules():
        if module is target:
            return str(path)
    raise ModelError(f"{type(target).__name__} is not a module of {type(model).__name__}")
