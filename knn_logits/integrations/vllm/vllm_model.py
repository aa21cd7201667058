"""`VLLMModel`: a model that vLLM runs, as an engine that computes keys and scores of texts.

Its passes are prefills of whole texts. They need the blocks of the cache, so no request may be at
work meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from vllm import SamplingParams
from vllm.tokenizers.registry import cached_tokenizer_from_config
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

from knn_logits.building.builder import build_datastore
from knn_logits.corpus.reading import read_corpus
from knn_logits.engine.hooks import first_tensor
from knn_logits.engine.location import breadth_first, feed_forward
from knn_logits.errors import ConfigError, ModelError

KEYS = ("ffn_input", "head_input")


class Scores(NamedTuple):
    """The result of a pass."""

    logits: Tensor  # [rows, columns, vocabulary]
    past_key_values: None = None


class VLLMModel(nn.Module):
    """A model that a worker of vLLM has loaded. The cache of its `runner` exists."""

    engine = "vllm"

    def __init__(self, runner: Any) -> None:
        super().__init__()
        model = runner.get_model()
        if runner.is_pooling_model or not hasattr(model, "compute_logits"):
            raise ModelError(
                f"{type(model).__name__} has no compute_logits, so it predicts no tokens: kNN "
                "needs a model that generates text"
            )
        self._runner = runner
        self.config = runner.model_config.hf_text_config
        given = runner.model_config.try_get_generation_config()
        self.generation_config = GenerationConfig(**given)
        self.precision = str(runner.model_config.dtype).removeprefix("torch.")
        self.tokenizer = cached_tokenizer_from_config(runner.model_config)
        # The states pass through these modules, so that they can be taken there.
        self.ffn_input, self.head_input = nn.Identity(), nn.Identity()

    def find_key(self, name: str) -> str:
        if name not in KEYS:
            raise ConfigError(
                f"vLLM gives the states at {' and '.join(KEYS)}, not at {name}: build the "
                "datastore with either key"
            )
        if name == "ffn_input" and not hasattr(self._runner, "knn_states"):
            if not self._runner.model_config.enforce_eager:
                raise ConfigError(
                    "the model is compiled without the key ffn_input: start vLLM with "
                    "enforce_eager=True, or with a datastore of this key"
                )
            keep_ffn_input(self._runner)
        return name

    def sampled(self, key: str, places: Tensor) -> Tensor:
        """The states at a key of the tokens that the last pass scored, by their places in it."""
        states: Tensor
        if key == "ffn_input":
            states = self._runner.knn_states[places]
        else:
            states = self._runner.execute_model_state.sample_hidden_states
        return states

    def get_decoder(self) -> nn.Module:
        return self

    @torch.inference_mode()
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, keys_only: bool = False
    ) -> Scores | None:
        """Reads texts, int64 [rows, columns], padded on the right."""
        rows, columns = input_ids.shape
        lengths = [columns] * rows if attention_mask is None else attention_mask.sum(-1).tolist()
        texts = [row[:length] for row, length in zip(input_ids.tolist(), lengths, strict=True)]
        states = nn.utils.rnn.pad_sequence(self._read(texts), batch_first=True)
        states = nn.functional.pad(states, (0, 0, 0, columns - states.shape[1]))
        kept = getattr(self._runner, "knn_states", states[:0, :0, :0])
        heads = states.shape[-1] - kept.shape[-1]
        self.ffn_input(states[..., heads:])
        states = self.head_input(states[..., :heads])
        if keys_only:
            return None
        logits = self._runner.model.compute_logits(states.flatten(0, 1))
        return Scores(logits.unflatten(0, (rows, columns)))

    def _read(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """The states of texts, [tokens, dims] each, in as few passes as fit.

        The head's input is first, and the feed-forward network's follows where it is kept.
        """
        runner, longest = self._runner, max(map(len, texts))
        if longest > runner.max_model_len:
            raise ModelError(
                f"a text has {longest:,} tokens, but vLLM reads {runner.max_model_len:,}: raise "
                "--max-model-len, or build with a smaller window"
            )
        most_rows = runner.scheduler_config.max_num_seqs
        most_tokens = runner.scheduler_config.max_num_batched_tokens
        groups = runner.kv_cache_config.kv_cache_groups
        sizes = [group.kv_cache_spec.block_size for group in groups]
        found: list[Tensor] = []
        batch: list[Sequence[int]] = []
        for text in texts:
            both = [*batch, text]
            blocks = sum(-(-len(one) // size) for one in both for size in sizes)
            full = len(both) > most_rows or sum(map(len, both)) > most_tokens
            if batch and (full or blocks >= runner.kv_cache_config.num_blocks):
                found += self._prefilled(batch, sizes, most_tokens)
                batch = []
            batch.append(text)
        return found + self._prefilled(batch, sizes, most_tokens)

    def _prefilled(
        self, texts: Sequence[Sequence[int]], sizes: Sequence[int], most: int
    ) -> list[Tensor]:
        """The states of texts of `most` tokens together, or of one in parts of `most` tokens."""
        blocks, free = [], 1  # block 0 is vLLM's own
        for text in texts:
            needed = [-(-len(text) // size) for size in sizes]
            ends = [free + sum(needed[: place + 1]) for place in range(len(sizes))]
            blocks.append(tuple(list(range(e - n, e)) for e, n in zip(ends, needed, strict=True)))
            free = ends[-1]
        starts = range(0, max(map(len, texts)), most)
        parts = [self._pass(texts, blocks, start, most) for start in starts]
        return [torch.cat(of_text) for of_text in zip(*parts, strict=True)]

    def _pass(
        self,
        texts: Sequence[Sequence[int]],
        blocks: Sequence[tuple[list[int], ...]],
        start: int,
        most: int,
    ) -> list[Tensor]:
        """Reads texts from a token on. What was read before is in their blocks of the cache."""
        runner, params = self._runner, SamplingParams(max_tokens=1)
        lengths = {f"knn-{row}": min(most, len(text) - start) for row, text in enumerate(texts)}
        step = SchedulerOutput.make_empty()
        step.scheduled_new_reqs = [
            NewRequestData(name, list(text), [], params, None, own, start, None)
            for name, text, own in zip(lengths, texts, blocks, strict=True)
        ]
        step.num_scheduled_tokens = lengths
        step.total_num_scheduled_tokens = sum(lengths.values())
        runner.execute_model(step)
        states, runner.execute_model_state = runner.execute_model_state.hidden_states, None
        if hasattr(runner, "knn_states"):
            states = torch.cat([states, runner.knn_states[: len(states)]], dim=-1)
        places, starts = runner.input_batch.req_id_to_index, runner.query_start_loc.np
        parts = [
            states[starts[places[name]] :][:length].clone() for name, length in lengths.items()
        ]
        done = SchedulerOutput.make_empty()
        done.finished_req_ids = set(lengths)
        runner.execute_model(done)
        return parts

    def build(self, sources: Sequence[str], folder: str, settings: Mapping[str, Any]) -> int:
        """Builds a datastore from files and folders, and returns its number of entries."""
        documents = read_corpus(list(sources))
        store = build_datastore(self, self.tokenizer, documents, folder, **settings)
        return len(store)


# The input of the last feed-forward network, which is the default key


def keep_ffn_input(runner: Any) -> None:
    """Makes a runner's model copy the input of its last feed-forward network into a buffer.

    The model has its weights and is not compiled yet. The copy is a part of its graph, and the
    buffer has one address for good, so a CUDA graph that is replayed fills it as well. With tensor
    parallelism, each process has the whole input, since attention ends with an all-reduce.
    """
    ffn = _last_ffn(runner)
    shape = (runner.max_num_tokens, runner.model_config.get_hidden_size())
    buffer = torch.zeros(shape, dtype=runner.model_config.dtype, device=runner.device)
    ffn.register_buffer("knn_states", buffer, persistent=False)
    ffn.register_forward_pre_hook(_keep, with_kwargs=True)
    runner.knn_states = buffer  # [tokens, dim], the tokens of a pass in vLLM's order
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
