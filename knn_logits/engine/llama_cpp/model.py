"""A GGUF file behind the calls of a transformers model: a pass, its key, and `generate()`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from knn_logits.engine.hooks import CACHE_NAME
from knn_logits.engine.llama_cpp.context import Context, TextCache, Weights, llama
from knn_logits.engine.llama_cpp.tokenizer import GGUFTokenizer
from knn_logits.errors import ConfigError, ModelError

# By the name of a key, the tensors of the last layer that hold it in one model or another. The
# first that the graph has is taken: a feed-forward network beside attention reads the norm before
# both, and one without a norm of its own reads the sum.
_KEYS = {"ffn_input": ("ffn_norm", "ffn_inp", "attn_norm"), "layer_output": ("l_out",)}


class GGUFConfig(PretrainedConfig):
    """The settings of a GGUF file, under the names that transformers has for them."""

    model_type = "gguf"


class _Sizes(nn.Module):
    """The shape of weights that llama.cpp holds."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        numbers = torch.empty(shape, dtype=torch.uint8, device="meta")
        self.weight = nn.Parameter(numbers, requires_grad=False)


class GGUFModel(GenerationMixin, nn.Module):
    """A language model in a GGUF file, run by llama.cpp on the processor or as it was built.

        model = GGUFModel("model.Q4_K_M.gguf")
        with KNNLogitsProcessor(model, "store") as knn: ...

    `PreTrainedModel` is no base class, since its module takes half a second to load.

    Args:
        path: The file.

    Attributes:
        tokenizer: The file's tokenizer.
        precision: The quantisation of the weights, such as "Q4_K_Medium".
        device: Where tokens are given and scores come from: llama.cpp itself may use a GPU.
        dtype: The precision of scores and states.

    Raises:
        MissingDependencyError: where llama-cpp-python is missing.
        ModelError: when the file is damaged, or no causal language model.
    """

    config_class = GGUFConfig
    base_model_prefix = "model"
    input_modalities = ("text",)
    main_input_name = "input_ids"
    engine = "llama.cpp"
    device, dtype = torch.device("cpu"), torch.float32
    rounds_by_pass = True  # other kernels read one token, and round what they multiply to 8 bits

    def __init__(self, path: Path | str) -> None:
        nn.Module.__init__(self)
        self._weights = weights = Weights(Path(path))
        functions, size = llama(), weights.size
        self.config, self.precision = _config(weights), weights.quantisation
        self._is_stateful = weights.recurrent
        self.lm_head = _Sizes(size, weights.dim)
        # A key's tensor passes through a module of the key's name, so that it can be taken there.
        self._tensors = _present_keys(weights)
        self.taps = nn.ModuleDict({key: nn.Identity() for key in self._tensors})
        self.tokenizer = GGUFTokenizer(weights)
        vocabulary = weights.vocabulary
        ends = [token for token in range(size) if functions.llama_vocab_is_eog(vocabulary, token)]
        first, pad = self.tokenizer.bos_token_id, self.tokenizer.pad_token_id
        self.generation_config = GenerationConfig(
            bos_token_id=first, eos_token_id=ends or None, pad_token_id=pad
        )
        # An empty context for passes without a cache.
        self._spare: Context | None = None
        self._lock = threading.Lock()
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

    def get_decoder(self) -> Any:
        """The module that reads tokens."""
        return self

    def get_output_embeddings(self) -> Any:
        """The shape of the head. llama.cpp has its weights."""
        return self.lm_head

    def get_input_embeddings(self) -> Any:
        """The shape of the embeddings, which is that of the head."""
        return self.lm_head

    def find_key(self, name: str) -> str:
        """The module for a key's name, "ffn_input" or "layer_output".

        Raises:
            ModelError: for another name, or when the model has no such tensor.
        """
        if name not in self._tensors:
            raise ModelError(
                f"{self._weights.path.name} has no key {name!r}: use one of "
                f"{', '.join(self._tensors)}"
            )
        return f"taps.{name}"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Any = None,
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
            cache: What was read before; `past_key_values` is its name until transformers 5.23.
            use_cache: Whether to return what was read.
            logits_to_keep: How many of the last columns to score; 0 for all. Others have no states
                either.
            keys_only: Whether to leave out the scores, and end a pass at the key.
        """
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
        cache = past_key_values if cache is None else cache
        cache = cache if isinstance(cache, TextCache) else None
        if cache is None and use_cache:
            cache = TextCache(self._weights, rows)
        taps = {self._tensors[name]: tap for name, tap in self.taps.items() if _has_hooks(tap)}
        keep = min(columns, logits_to_keep or columns)
        scores = np.zeros((rows, 0 if keys_only else keep, self._weights.size), np.float32)
        states = {name: np.zeros((rows, columns, self._weights.dim), np.float32) for name in taps}
        for row in range(rows):
            places = np.flatnonzero(mask[row])
            scored = places[places >= columns - keep]
            if cache is None:
                context = self._empty_context(len(places), tuple(taps))
            else:
                context = cache.context(row, len(places), tuple(taps))
            logits, found = context.read(
                ids[row, places].tolist(), len(scored), keys_only=keys_only
            )
            if not keys_only:
                scores[row, scored - (columns - keep)] = logits
            for name, vectors in found.items():
                states[name][row, scored] = vectors
            if cache is None:
                self._spare = context
        if cache is not None:
            cache.advance(columns)
        for name, tap in taps.items():
            tap(torch.from_numpy(states[name]))
        output: Any = CausalLMOutputWithPast
        result: CausalLMOutputWithPast = output(
            logits=torch.from_numpy(scores), **{CACHE_NAME: cache}
        )
        return result

    def _empty_context(self, tokens: int, names: tuple[str, ...]) -> Context:
        with self._lock:
            context, self._spare = self._spare, None
        if context is None or context.size < tokens or context.names != names:
            return Context(self._weights, tokens, names)
        context.clear()
        return context


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _present_keys(weights: Weights) -> dict[str, str]:
    """By the name of a key its tensor, which a short pass has."""
    names = {kind: f"{kind}-{weights.layers - 1}" for kinds in _KEYS.values() for kind in kinds}
    _, found = Context(weights, 2, list(names.values())).read([0, 0], 2)
    present: dict[str, str] = {}
    for key, kinds in _KEYS.items():
        for name in (names[kind] for kind in reversed(kinds)):
            if len(found[name]):
                present[key] = name
    return present


def _config(weights: Weights) -> GGUFConfig:
    """The settings of a file that say what it computes, and those that are asked for by name."""
    settings = weights.settings
    name = settings.get("general.architecture", "unknown")
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
