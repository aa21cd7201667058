"""Finds the places of a model at which a key can be read, for the study that compares them."""

from __future__ import annotations

from torch import nn

from knn_logits.engine.location import DEFAULT_KEY, decoder_of, find_key
from knn_logits.errors import ModelError


def key_places(model: nn.Module) -> dict[str, str]:
    """Finds the places of a model that the papers compare.

    Args:
        model: A causal language model.

    Returns:
        The places by their names in the report, in the form that `find_key` takes. Places that the
        model lacks are left out.
    """
    found = {"FFN's input": DEFAULT_KEY, "layer's output": "layer_output"}
    try:
        last = find_key(model, "layer_output").module
    except ModelError:
        return {"FFN's input": DEFAULT_KEY}
    layer = model.get_submodule(last)
    attention = next(
        (name for name, one in layer.named_children() if "Attention" in type(one).__name__), None
    )
    if attention is not None:
        found["attention's output"] = f"{last}.{attention}:output"
    layers, _, number = last.rpartition(".")
    if number.isdecimal() and int(number) > 0:
        found["output of the layer before"] = f"{layers}.{int(number) - 1}:output"
    decoder = decoder_of(model)
    paths = {id(one): name for name, one in model.named_modules()}
    norms = [one for one in decoder.children() if "Norm" in type(one).__name__]
    if norms:
        found["head's input"] = f"{paths[id(norms[-1])]}:output"
    return found
