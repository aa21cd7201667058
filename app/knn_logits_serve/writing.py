"""Writes the answers of a request in a thread of its own, and traces them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias

from knn_logits import Deadline, KNNLogitsProcessor, Pieces
from knn_logits_app.streaming import TokenStream
from knn_logits_app.traced import named
from knn_logits_serve.asked import Asked, Prompt
from knn_logits_serve.decoding import Overheard, processors
from knn_logits_serve.echoing import echo_of, scored
from knn_logits_serve.served import Served
from knn_logits_serve.told import End, Ending, Piece, Token

Tell: TypeAlias = Callable[[Piece | End], None]

# The most passages that are kept for a token, and the most of the likeliest tokens in its place.
PASSAGES = 3
CANDIDATES = 5


def write(served: Served, asked: Asked, tell: Tell, deadline: Deadline) -> None:
    """Writes all answers of a request, one after another.

    Args:
        served: The model.
        asked: The request.
        tell: Takes each piece and each end, in the thread that writes.
        deadline: Ends the writing early.

    Raises:
        KNNLogitsError: when the request cannot be answered.
    """
    # Settings that do not fit are refused before a word is written.
    memory = served.memory_of(asked) if asked.stores else None
    with ExitStack() as stack:
        knn = None
        if memory is not None and asked.new_tokens:
            knn = stack.enter_context(
                KNNLogitsProcessor(served.model, memory, candidates=CANDIDATES)
            )
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


def _write_one(
    served: Served,
    asked: Asked,
    prompt: Prompt,
    choice: int,
    knn: KNNLogitsProcessor | None,
    tell: Tell,
    deadline: Deadline,
) -> End:
    tokenizer = served.tokenizer
    start = len(prompt.ids)
    overheard = Overheard() if asked.logprobs is not None else None
    pieces = Pieces(tokenizer, prompt.ids)
    ending = Ending(asked.stops)
    enough = Deadline()
    said: list[str] = []
    written = 0
    held: list[Piece] = []
    # At each piece this thread and the event loop take turns, which costs more than the piece. So
    # only a stream is told of each.
    say: Callable[[Piece], None] = tell if asked.stream else held.append

    def on_token(token: int) -> None:
        nonlocal written
        if ending.over():
            return  # The token was drafted together with earlier ones, after the text's end.
        position = start + written
        written += 1
        if token in served.silent:
            return
        text = pieces.add(token)
        if served.reads_sources and not any(said):
            text = text.lstrip()
        one = Token(text)
        if overheard is not None:
            one = scored(tokenizer, text, *overheard.at(position, token, asked.logprobs or 0))
        said.append(text)
        _tell(say, choice, *ending.add(one))
        if ending.over():
            enough.cancel()

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
        logits_processor=processors(asked.sampling, seed, start, first),
        stopping_criteria=[deadline, enough],
        streamer=TokenStream(on_token),
    )
    _tell(say, choice, *ending.rest())
    if held:
        tokens = tuple(token for one in held for token in one.tokens)
        tell(Piece(choice, "".join(one.text for one in held), tokens))
    last = int(output[0, -1])
    reason = "stop" if ending.over() or last in served.ends else "length"
    trace = None
    if knn is not None and not deadline.cancelled:
        trace = knn.trace(output, tokenizer, max_neighbors=PASSAGES)[0]
        names = dict(zip(knn.memory.names, asked.stores, strict=True))
        words = [one for one in trace.tokens if one.token_id not in served.silent]
        trace = named(replace(trace, tokens=words), names)
    text = "".join(said)
    cut = min((at for one in asked.stops if (at := text.find(one)) >= 0), default=len(text))
    offset = len(prompt.text) if asked.echo else 0
    return End(choice, reason, written, text[:cut], trace, offset)


def _tell(tell: Callable[[Piece], None], choice: int, text: str, tokens: tuple[Token, ...]) -> None:
    if text or tokens:
        tell(Piece(choice, text, tokens))
