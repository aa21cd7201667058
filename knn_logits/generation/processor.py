"""`KNNLogitsProcessor` attaches to a model, mixes the neighbors' vote in, and records it."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LogitsProcessor
from typing_extensions import Unpack

from knn_logits.engine.compatibility import check_tokenizer, vocabulary_size
from knn_logits.engine.hooks import Call, Courses, StateCapture, Window
from knn_logits.engine.tokens import end_tokens
from knn_logits.errors import ConfigError, ModelError, TraceError
from knn_logits.evidence.assemble import MAX_NEIGHBORS, Tracer
from knn_logits.evidence.recording import NO_RECORD, Recorder
from knn_logits.evidence.trace import Trace
from knn_logits.generation.drafts import DraftedDecoding, Drafter, arguments_for_drafts
from knn_logits.mixture.gates.gate import Gate
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.presets import MemorySettings, generation_settings
from knn_logits.mixture.vote import Vote
from knn_logits.search.combined import Stores
from knn_logits.settings.config import KNNConfig, whole_number

logger = logging.getLogger(__name__)

_NO_PASS = (
    "kNN is off: a KNNLogitsProcessor was called, but its model made no forward pass over "
    "these tokens in this thread. Call generate() of the very model that it was made with, not of "
    "a copy, in evaluation mode, run by PyTorch itself, and give it input_ids"
)


class KNNLogitsProcessor(LogitsProcessor):
    """Mixes the vote of a datastore's neighbors into a model's next-token distribution.

        with KNNLogitsProcessor(model, store) as knn:
            output = model.generate(**inputs, logits_processor=[knn])
            knn.trace(output, tokenizer).show()

    The processor attaches hooks to the model. They act in `generate()` calls of any thread, and
    change nothing in one without the processor. Greedy search, sampling, beams, left padding,
    assisted decoding and prompt lookup work. Continuous batching ignores logits processors.

    Khandelwal et al. (2020), "Generalization through Memorization", section 2.

    Args:
        model: A causal or encoder-decoder language model of transformers.
        datastore: A `Memory` of this model, or one or several datastores or their folders. Several
            are searched as one. Settings that are not given are the first datastore's.
        record: Whether to keep what `trace` needs, about 24 bytes of each
            neighbor and match for each generated token.
        candidates: How many of the likeliest tokens of each step a trace names.
        settings: `k`, `lmbda`, `temperature`, `device`, `retomaton` and so on, which
            `Memory` explains.

    Attributes:
        loop_size: Number of repeated tokens at which an answer that loops ends. None switches this
            off. It is the datastore's setting, and None where λ is 0.

    Raises:
        KNNLogitsError: as `Memory` explains.
    """

    def __init__(
        self,
        model: nn.Module,
        datastore: Memory | Stores,
        *,
        record: bool = True,
        candidates: int = 0,
        **settings: Unpack[MemorySettings],
    ) -> None:
        candidates = whole_number("candidates", candidates, 0)
        self.memory = Memory.of(model, datastore, **settings)
        self.loop_size = None if self.memory.is_off else self.memory.loop_size
        self._warned = self._closed = False
        self._current, self._courses = threading.local(), Courses()
        self._model_config: Any = getattr(model, "generation_config", None) or model.config
        self._ends = end_tokens(self._model_config, vocabulary_size(model))
        self._recorder = Recorder(self._ends, candidates) if record else None
        self._capture = StateCapture(model, self.memory.location)

    @property
    def config(self) -> KNNConfig:
        """The settings that are numbers."""
        return self.memory.config

    @property
    def gate(self) -> Gate | None:
        """The gate that decides on λ; None if λ is a number."""
        return self.memory.gate

    @property
    def vote(self) -> Vote | None:
        """The memory's vote at this thread's latest step; None before the first step."""
        return getattr(self._current, "vote", None)

    def close(self) -> None:
        """Removes the hooks from the model, which is then as it was before."""
        self._closed = True
        self._capture.close()

    def generate(self, inputs: Tensor | None = None, *, draft: bool = True, **settings: Any) -> Any:
        """Calls the model's `generate()` with this processor, and uses drafts where possible.

            output = knn.generate(**tokenizer("The winch", return_tensors="pt"))

        With drafts one forward pass gives several tokens, and the text stays the same in float32.
        In half precision or quantised, such passes round otherwise, which changes a text every few
        hundred tokens, so that it gets them only while a passage is followed. Drafts work for one
        text at a time, greedy or sampled, as `drafts.can_draft` explains. Otherwise this is the
        same as `generate()`.

        Args:
            inputs: The ids of the prompt, int64 [rows, length]; or give them as `input_ids`.
            draft: Whether to use drafts.
            settings: Arguments of `generate()`. Where neither these nor their `generation_config`
                have a `no_repeat_ngram_size`, `generation_settings` holds. This processor comes
                first in `logits_processor`, unless the list has it in another place. A token that
                an earlier one forbids, as a grammar does, gets no vote.

        Returns:
            The result of `generate()`.
        """
        model: Any = self.memory.model
        if not self.memory.is_off:
            settings = with_defaults(settings, generation_settings(self.memory.stores[0]))
        processors = list(settings.pop("logits_processor", None) or ())
        # A list with this processor keeps its order: what stands before it is a constraint.
        is_placed = any(other is self for other in processors)
        settings["logits_processor"] = processors if is_placed else [self, *processors]
        if inputs is not None:
            settings["input_ids"] = inputs
        ids = checked_ids(settings)
        drafted = arguments_for_drafts(model, settings) if draft else None
        if drafted is not None:
            drafter = Drafter(self.memory)
            loop = DraftedDecoding(
                lambda text, room: drafter.draft(text, self.vote, room),
                drafter.learn,
                self._expect,
                settings.get("streamer"),
            )
            output = model.generate(**drafted, custom_generate=loop)
            self._current.passes = loop.passes
            return output
        output = model.generate(**settings)
        # A text without a prompt has one token before it.
        before = 1 if ids is None or model.config.is_encoder_decoder else ids.shape[1]
        self._current.passes = getattr(output, "sequences", output).shape[1] - before - 1
        return output

    @property
    def passes(self) -> int:
        """Forward passes after the prompt's in this thread's latest call of `generate`."""
        return int(getattr(self._current, "passes", 0))

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise ConfigError("logits_processor must be a list: generate(..., logits_processor=[knn])")

    __iter__ = __len__

    def __enter__(self) -> KNNLogitsProcessor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mixes the neighbors' vote into the scores of one step.

        Args:
            input_ids: int64 [rows, length].
            scores: [rows, vocabulary], logits or log-probabilities.

        Returns:
            float32 [rows, vocabulary], log-probabilities of the mixture. If λ is 0, or no forward
            pass of the model produced the scores, `scores` itself.

        Raises:
            ModelError: when the processor was closed.
        """
        if self._closed:
            raise ModelError("this KNNLogitsProcessor is closed: create a new one")
        call = Call()
        read = None if call.drafts else self._capture.find(input_ids)
        if read is None:
            if not call.drafts and not self._warned:
                logger.warning(_NO_PASS)
                self._warned = True
            return scores
        window, position, input_ids = read
        first = not window.answers
        course, begins = self._courses.follow(call, input_ids.shape[1], again=not first)
        if begins:
            self.memory.retriever.begin_text()
            course.ends = end_tokens(call.config or self._model_config, scores.shape[-1])
        with torch.autocast(scores.device.type, enabled=False):
            if self.loop_size is not None:
                scores = end_loops(scores, input_ids, course.start, self.loop_size, course.ends)
            log_p_lm = torch.log_softmax(scores.float(), dim=-1)
            vote = self._vote(window, position, input_ids, log_p_lm)
            # With λ 0 the text is the model's own. A logarithm could make two scores equal.
            mixed = scores if self.memory.is_off else vote.log_p
        self._current.vote = vote
        if self._recorder is not None:
            self._recorder.add(course, input_ids, vote, call.going_on, first=first)
        return mixed

    def _vote(self, window: Window, position: int, texts: Tensor, log_p_lm: Tensor) -> Vote:
        memory, answers = self.memory, window.answers
        vote: Vote | None
        if position not in answers:
            # Assisted decoding asks for the positions from here on one by one. They are searched
            # together, unless a search needs the tokens that were chosen before.
            follows = memory.retriever.follows_text
            states = window.states[:, position : position + 1 if follows else None]
            rows, positions, _ = states.shape
            if positions == 1 and not follows:
                found, vote = memory.step(states[:, 0], texts, log_p_lm)
                answers[position] = found, None
                return vote
            if positions > 1:
                texts = torch.cat([texts, window.ids[:, position + 1 :]], dim=-1)
            found = memory.neighbors(states, texts)
            scores, votes = getattr(self._current, "scores", None), None
            if scores is not None and len(scores) == found.rows:
                votes = memory.vote(found, torch.log_softmax(scores.float(), dim=-1))
                self._current.scores = None
            for number in range(positions):
                part = slice(number * rows, (number + 1) * rows)
                answers[position + number] = found[part], None if votes is None else votes[part]
        found, vote = answers[position]
        # Another processor may have changed the scores.
        if vote is None or not torch.equal(vote.log_p_lm, log_p_lm):
            vote = memory.vote(found, log_p_lm)
        return vote

    def _expect(self, scores: Tensor) -> None:
        """Takes the scores of all positions of a pass, whose votes are computed together."""
        self._current.scores = scores

    def trace(
        self,
        output: Any,
        tokenizer: Any,
        *,
        max_neighbors: int = MAX_NEIGHBORS,
        prompt: str | None = None,
        pad_token_id: int | None = None,
    ) -> Trace:
        """Traces which passages caused which token of an output.

        Args:
            output: The result of `generate()` in any thread, but for beam search, which moves
                texts from row to row: `explain` traces such a text.
            tokenizer: The model's tokenizer.
            max_neighbors: The most passages to keep for each token.
            prompt: What a person wrote, if the model read more, such as the words of a chat's
                template. The trace has this prompt; without it, all that the model read.
            pad_token_id: The padding token, if `generate()` was given one that is neither the
                model's nor the tokenizer's. Padding is not traced.

        Returns:
            A trace with one sequence for each of the output.

        Raises:
            TraceError: when this processor has not recorded the generation, or no longer has it.
            MismatchError: when the tokenizer is not the datastore's.
        """
        max_neighbors = whole_number("max_neighbors", max_neighbors, 0)
        check_tokenizer(tokenizer, self.memory.stores[0])
        sequences = getattr(output, "sequences", output)
        if not is_ids(sequences):
            raise TraceError("trace() needs an output of generate()")
        if self._recorder is None:
            raise TraceError(NO_RECORD)
        sequences = sequences.cpu()
        recording = self._recorder.fitting(sequences, self._courses.latest)
        pads = [pad_token_id]
        if pad_token_id is None:
            # A model without such a token pads ended rows with its end token, but a tokenizer has
            # padded the prompts with its own.
            model_pad = getattr(self._model_config, "pad_token_id", None)
            model_pads = self._ends[:1] if model_pad is None else [model_pad]
            pads = [*model_pads, tokenizer.pad_token_id]
        padding = [token for token in pads if token is not None]
        tracer = Tracer(self.memory, tokenizer, max_neighbors)
        return tracer.recorded(recording, sequences, pads=padding, prompt=prompt)


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


def goes_round(answer: Sequence[int], size: int) -> bool:
    """Whether the last tokens repeat: a whole period of them, and at least `size` tokens."""
    length = len(answer)
    for period in range(1, length // 2 + 1):
        repeated = max(period, size)
        stretch = period + repeated
        if stretch > length or answer[-1] != answer[-1 - period]:
            continue
        if answer[-repeated:] == answer[-stretch : length - period]:
            return True
    return False


def end_loops(scores: Tensor, ids: Tensor, start: int, size: int, ends: Sequence[int]) -> Tensor:
    """Leaves a looping row only the tokens that end a text.

    Args:
        scores: [rows, vocabulary].
        ids: int64 [rows, length], the texts, on the CPU.
        start: The length of their prompts.
        size: The fewest tokens that count as repeated.
        ends: The tokens that end a text.

    Returns:
        The scores, [rows, vocabulary]. A text that may not end yet, or never does, keeps them.
    """
    result, answers = scores, ids.numpy()[:, start:]
    places = answers.shape[1] - size
    if places <= 0 or not ends:
        return scores
    # Where the last tokens of each row occur before. Few places agree with more than the last.
    same = np.ones((len(answers), places), bool)
    for back in range(size - 1, -1, -1):
        same &= answers[:, back : back + places] == answers[:, places + back, None]
        if not same.any():
            return scores
    for row in np.flatnonzero(same.any(axis=1)).tolist():
        if not goes_round(answers[row].tolist(), size):
            continue
        ended = torch.full_like(scores[row], float("-inf"))
        ended[ends] = scores[row, ends]
        if bool((ended > torch.finfo(scores.dtype).min).any()):
            result = scores.clone() if result is scores else result
            result[row] = ended
    return result
