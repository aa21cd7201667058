"""A GGUF file with the `generate()` of transformers."""

from __future__ import annotations

from transformers import GenerationMixin

from knn_logits.engine.llama_cpp.passes import GGUFPasses


class GGUFModel(GenerationMixin, GGUFPasses):
    """A language model in a GGUF file, run by llama.cpp on the processor or as it was built.

        model = GGUFModel("model.Q4_K_M.gguf")
        with KNNLogitsProcessor(model, "store") as knn: ...

    `PreTrainedModel` is no base class, since its module takes half a second to load. What
    `generate()` asks of it is in `GGUFPasses`.

    Args:
        path: The file.

    Attributes:
        tokenizer: The file's tokenizer.

    Raises:
        MissingDependencyError: where llama-cpp-python is missing.
        ModelError: when the file is damaged, or no causal language model.
    """
