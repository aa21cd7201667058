"""Writes the answers of a request in a thread of its own, and traces them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from knn_logits import Deadline, KNNLogitsProcessor, Memory
from knn_logits_app.decoding import TokenStream
from knn_logits_serve.asked import Asked, Prompt
from knn_logits_serve.decoding import Overheard, processors
from knn_logits_serve.echoing import echo_of
from knn_logits_serve.served import Served
from knn_logits_serve.telling import Tell, Telling
from knn_logits_serve.told import End, Piece

# The most passages that are kept for a token, and the most of the likeliest tokens in its place.
PASSAGES = 3
CANDIDATES = 5


def write(served: Served, asked: Asked, tell: Tell, deadline: Deadline) -> None:
    """Writes all answers of a request, one after another."""
    # Settings that do not fit are refused before a word is written.
    memory = served.memory_of(asked) if asked.stores else None
    with ExitStack() as stack:
        knn = None
        if memory is not None and asked.new_tokens:
            knn = stack.enter_context(processor_of(served, asked, memory))
        for number, prompt in enumerate(asked.prompts):
            echoed = echo_of(served, asked, prompt, memory) if asked.echo else None
            for choice in range(number * asked.n, (number + 1) * asked.n):
                if echoed is not None:
                    tell(Piece(choice, prompt.text, echoed))
                if not asked.new_tokens:
                    tell(End(choice, "length", 0, ""))
                    continue
                if deadline.cancelled:
                    return
                tell(_write_one(served, asked, prompt, choice, knn, tell, deadline))


def processor_of(served: Served, asked: Asked, memory: Memory) -> KNNLogitsProcessor:
    """Attaches the memory of a request to the model."""
    # The likeliest tokens cost a tenth of an answer's time, and only a drawn answer shows them.
    candidates = CANDIDATES if asked.drawn else 0
    return KNNLogitsProcessor(served.model, memory, candidates=candidates)


def names_of(knn: KNNLogitsProcessor, asked: Asked) -> dict[str, str]:
    """Returns the names of the datastores for clients, by their own names."""
    return dict(zip(knn.memory.names, asked.stores, strict=True))


class _End(StoppingCriteria):
    """Ends a text at its stop text, or when its time is up."""

    def __init__(self, telling: Telling, deadline: Deadline) -> None:
        self._telling, self._deadline = telling, deadline

    def __call__(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        over = self._telling.over or self._deadline.over
        return torch.full((len(input_ids),), over, device=input_ids.device)


def _write_one(
    served: Served,
    asked: Asked,
    prompt: Prompt,
    choice: int,
    knn: KNNLogitsProcessor | None,
    tell: Tell,
    deadline: Deadline,
) -> End:
    overheard = Overheard() if asked.logprobs is not None else None
    telling = Telling(served, asked, prompt, choice, tell, overheard)
    first: list[Any] = [one for one in (knn, overheard) if one is not None]
    seed = asked.sampling.seed + choice
    # With kNN passages are drafted, which gives the same text in fewer forward passes.
    generate = served.model.generate if knn is None else knn.generate
    output = generate(
        **prompt.inputs,
        **served.generation,
        max_new_tokens=asked.new_tokens,
        do_sample=False,
        num_beams=1,
        logits_processor=processors(asked.sampling, seed, len(prompt.ids), first),
        stopping_criteria=[_End(telling, deadline)],
        streamer=TokenStream(telling.add),
    )
    last = int(output[0, -1])
    if knn is None or deadline.cancelled:
        return telling.end(last, None, {})
    trace = knn.trace(output, served.tokenizer, max_neighbors=PASSAGES)[0]
    return telling.end(last, trace, names_of(knn, asked))
