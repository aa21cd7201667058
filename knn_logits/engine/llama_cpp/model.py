"""A GGUF file behind the calls of a transformers model: a pass, its key, and `generate()`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from knn_logits.engine.llama_cpp.cache import Contexts, TextCache
from knn_logits.engine.llama_cpp.context import tensor_names
from knn_logits.engine.llama_cpp.llama_library import Weights, llama
from knn_logits.engine.llama_cpp.tokenizer import GGUFTokenizer
from knn_logits.errors import ConfigError, ModelError

# By the name of a key, the tensors of the last layer that hold it in one model or another. The
# first that the graph has is taken: a feed-forward network beside attention reads the norm before
# both, and one without a norm of its own reads the sum.
_KEYS = {"ffn_input": ("ffn_norm", "ffn_inp", "attn_norm"), "layer_output": ("l_out",)}
# The prefix of the names of tensors after attention.
_AFTER_ATTENTION = ("ffn_", "l_out")


class GGUFConfig(PretrainedConfig):
    """The settings of a GGUF file, under the names that transformers has for them."""

    model_type = "gguf"


class Tap(nn.Module):
    """The place of a tensor. A hook on it gets the tensor's values at each pass."""

    def forward(self, states: Tensor) -> Tensor:
        """Returns the states, float32 [rows, tokens, dim]."""
        return states


class _Sizes(nn.Module):
    """The number of weights that llama.cpp holds, in the shape of a parameter without memory."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        numbers = torch.empty(shape, dtype=torch.uint8, device="meta")
        self.weight = nn.Parameter(numbers, requires_grad=False)


class _Decoder(nn.Module):
    """Runs llama.cpp, and shows the states of the taps to their hooks."""

    def __init__(self, weights: Weights, contexts: Contexts) -> None:
        super().__init__()
        self._weights, self._contexts = weights, contexts
        self.body = _Sizes(max(1, weights.parameters - weights.size * weights.dim))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: TextCache | None = None,
        logits_to_keep: int = 0,
        keys_only: bool = False,
    ) -> tuple[Tensor, TextCache]:
        ids = input_ids.cpu().numpy()
        rows, columns = ids.shape
        # As an unsigned number, one below 0 is large.
        if ids.astype(np.uint64).max(initial=0) >= self._weights.size:
            raise ConfigError(
                f"a token id is not below {self._weights.size}, the size of the model's "
                "vocabulary: use the model's own tokenizer"
            )
        mask = np.ones((rows, columns), bool)
        if attention_mask is not None:
            mask = attention_mask.cpu().numpy()[:, -columns:].astype(bool)
        taps = {
            name: tap
            for name, tap in self.named_children()
            if isinstance(tap, Tap) and _has_hooks(tap)
        }
        cache = past_key_values
        if cache is None:
            cache = TextCache(self._contexts, rows, tuple(taps), int(mask.sum(1).max()))
        keep = 0 if keys_only else min(columns, logits_to_keep or columns)
        # Positions without a score, such as most of a prompt, end at the key. Where the text
        # continues, the last layer's attention comes first, since later tokens look back at it.
        last = next(iter(taps)) if len(taps) == 1 else None
        if last is not None and not (keys_only or last.startswith(_AFTER_ATTENTION)):
            last = None
        scores, states = cache.read(ids, mask, tuple(taps), keep=keep, last=last)
        for name, tap in taps.items():
            tap(torch.from_numpy(states[name]))
        return torch.from_numpy(scores), cache


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class GGUFModel(GenerationMixin, nn.Module):
    """A language model in a GGUF file, run by llama.cpp on the processor or as it was built.

        model = GGUFModel("model.Q4_K_M.gguf")
        with KNNLogitsProcessor(model, "store") as knn: ...

    `PreTrainedModel` is no base class, since its module takes half a second to load.

    Args:
        path: The file.

    Attributes:
        tokenizer: The file's tokenizer.

    Raises:
        MissingDependencyError: where llama-cpp-python is missing.
        ModelError: when the file is damaged, or no causal language model.
    """

    config_class = GGUFConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    main_input_name = "input_ids"
    engine = "llama.cpp"
    rounds_by_pass = True  # other kernels read one token, and round what they multiply to 8 bits

    def __init__(self, path: Path | str) -> None:
        weights = Weights(Path(path))
        functions, size = llama(), weights.size
        nn.Module.__init__(self)
        self.config = _config(weights)
        self._weights, self._is_stateful = weights, weights.recurrent
        self.model = _Decoder(weights, Contexts(weights))
        self.lm_head = _Sizes(size, weights.dim)
        self.tokenizer = GGUFTokenizer(weights)
        self._ending = f"-{weights.layers - 1}"
        names = tensor_names(weights)
        self._tensors = [name for name in names if name.endswith(self._ending)]
        vocabulary = weights.vocabulary
        ends = [token for token in range(size) if functions.llama_vocab_is_eog(vocabulary, token)]
        first, pad = self.tokenizer.bos_token_id, self.tokenizer.pad_token_id
        self.generation_config = GenerationConfig(
            bos_token_id=first, eos_token_id=ends or None, pad_token_id=pad
        )
        self.train(False)

    @classmethod
    def can_generate(cls) -> bool:
        """Whether it writes texts."""
        return True

    @classmethod
    def is_remote_code(cls) -> bool:
        """Whether its code comes from the Hub."""
        return False

    def get_experts_implementation(self) -> dict[str, str]:
        """How PyTorch runs the experts of a mixture, which are llama.cpp's here."""
        return {}

    @property
    def device(self) -> torch.device:
        """Where tokens are given and scores come from: llama.cpp itself may use a GPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The precision of scores and states."""
        return torch.float32

    @property
    def precision(self) -> str:
        """The quantisation of the weights, such as "Q4_K_Medium"."""
        return self._weights.quantisation

    def get_decoder(self) -> Any:
        """The module that reads tokens."""
        return self.model

    def get_output_embeddings(self) -> Any:
        """The shape of the head. llama.cpp has its weights."""
        return self.lm_head

    def get_input_embeddings(self) -> Any:
        """The shape of the embeddings, which is that of the head."""
        return self.lm_head

    def find_key(self, name: str) -> str:
        """The module for a key's name: "ffn_input", "layer_output", or a tensor of llama.cpp.

        Raises:
            ModelError: when the model has no such tensor.
        """
        return self._tap(self._tensor_of(name))

    def _tensor_of(self, name: str) -> str:
        names = [kind + self._ending for kind in _KEYS.get(name, ())]
        names.append(name.removesuffix(":output").removeprefix("model."))
        for tensor in names:
            if tensor in self._tensors:
                return tensor
        shown = [tensor for tensor in self._tensors if " " not in tensor]
        raise ModelError(
            f"{self._weights.path.name} has no tensor for the key {name!r}; its last layer has "
            f"{', '.join(shown[:24])}"
        )

    def _tap(self, tensor: str) -> str:
        if tensor not in dict(self.model.named_children()):
            self.model.add_module(tensor, Tap())
        return f"model.{tensor}"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        keys_only: bool = False,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Reads tokens, as models of transformers do.

        Args:
            input_ids: int64 [rows, columns].
            attention_mask: [rows, columns so far], 0 for padding, which is not read.
            past_key_values: What was read before.
            use_cache: Whether to return what was read.
            logits_to_keep: How many of the last columns to score; 0 for all.
            keys_only: Whether to leave out the scores, and end a pass at the key.
        """
        cache = past_key_values if isinstance(past_key_values, TextCache) else None
        if cache is None and past_key_values is not None and past_key_values.get_seq_length():
            raise ConfigError("past_key_values belong to another model: omit them")
        logits, cache = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            logits_to_keep=logits_to_keep,
            keys_only=keys_only,
        )
        output: Any = CausalLMOutputWithPast
        result: CausalLMOutputWithPast = output(
            logits=logits, past_key_values=cache if use_cache is not False else None
        )
        return result


def _config(weights: Weights) -> GGUFConfig:
    """The settings of a file that say what it computes, and those that are asked for by name."""
    name, settings = weights.architecture, weights.settings
    make: Any = GGUFConfig
    config: GGUFConfig = make(
        vocab_size=weights.size,
        max_position_embeddings=weights.context_length,
        num_hidden_layers=weights.layers,
        is_encoder_decoder=False,
        gguf={key: value for key, value in settings.items() if key.startswith(f"{name}.")},
    )
    vars(config)["model_type"] = name
    vars(config)["_name_or_path"] = str(weights.path)
    return config
