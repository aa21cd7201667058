"""Writes the answers of a request in a thread of its own, and traces them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from knn_logits import Deadline, KNNLogitsProcessor, Memory
from knn_logits_app.decoding import TokenStream
from knn_logits_serve.answering import AnswerWriter, Tell
from knn_logits_serve.decoding import Overheard, processors
from knn_logits_serve.echoing import echo_of
from knn_logits_serve.parts import End, Piece
from knn_logits_serve.request import GenerationRequest, Prompt
from knn_logits_serve.served import Served

# The most passages that are kept for a token, and the most of the likeliest tokens in its place.
PASSAGES = 3
CANDIDATES = 5


def write(served: Served, request: GenerationRequest, tell: Tell, deadline: Deadline) -> None:
    """Writes all answers of a request, one after another."""
    # Settings that do not fit are refused before a word is written.
    memory = served.memory_of(request) if request.stores else None
    with ExitStack() as stack:
        knn = None
        if memory is not None and request.new_tokens:
            knn = stack.enter_context(processor_of(served, request, memory))
        for number, prompt in enumerate(request.prompts):
            echoed = echo_of(served, request, prompt, memory) if request.echo else None
            for choice in range(number * request.n, (number + 1) * request.n):
                if echoed is not None:
                    tell(Piece(choice, prompt.text, echoed))
                if not request.new_tokens:
                    tell(End(choice, "length", 0, ""))
                    continue
                if deadline.cancelled:
                    return
                tell(_write_text(served, request, prompt, choice, knn, tell, deadline))


def processor_of(served: Served, request: GenerationRequest, memory: Memory) -> KNNLogitsProcessor:
    """Attaches the memory of a request to the model."""
    # The likeliest tokens cost a tenth of an answer's time, and only a drawn answer shows them.
    candidates = CANDIDATES if request.drawn else 0
    return KNNLogitsProcessor(served.model, memory, candidates=candidates)


def names_of(knn: KNNLogitsProcessor, request: GenerationRequest) -> dict[str, str]:
    """Returns the names of the datastores for clients, by their own names."""
    return dict(zip(knn.memory.names, request.stores, strict=True))


class _End(StoppingCriteria):
    """Ends a text at its stop text, or when its time is up."""

    def __init__(self, writer: AnswerWriter, deadline: Deadline) -> None:
        self._writer, self._deadline = writer, deadline

    def __call__(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        over = self._writer.over or self._deadline.over
        return torch.full((len(input_ids),), over, device=input_ids.device)


def _write_text(
    served: Served,
    request: GenerationRequest,
    prompt: Prompt,
    choice: int,
    knn: KNNLogitsProcessor | None,
    tell: Tell,
    deadline: Deadline,
) -> End:
    overheard = Overheard() if request.logprobs is not None else None
    writer = AnswerWriter(served, request, prompt, choice, tell, overheard)
    first: list[Any] = [processor for processor in (knn, overheard) if processor is not None]
    seed = request.sampling.seed + choice
    # With kNN passages are drafted, which gives the same text in fewer forward passes.
    generate = served.model.generate if knn is None else knn.generate
    output = generate(
        **prompt.inputs,
        **served.generation,
        max_new_tokens=request.new_tokens,
        do_sample=False,
        num_beams=1,
        logits_processor=processors(request.sampling, seed, len(prompt.ids), first),
        stopping_criteria=[_End(writer, deadline)],
        streamer=TokenStream(writer.add),
    )
    last = int(output[0, -1])
    if knn is None or deadline.cancelled:
        return writer.end(last, None, {})
    trace = knn.trace(output, served.tokenizer, max_neighbors=PASSAGES)[0]
    return writer.end(last, trace, names_of(knn, request))
