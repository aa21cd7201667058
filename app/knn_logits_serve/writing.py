"""Writes the answers of a request, in a thread of its own.

A text ends at its end token, at its stop text, at its number of tokens, or when its client goes
away.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from knn_logits import AskConfig, Asking, KNNLogitsProcessor, Memory
from knn_logits.hosting import Pieces
from knn_logits_app.decoding import TokenStream
from knn_logits_serve.answers import AnswerPart, End, Piece, Token
from knn_logits_serve.bodies import ChatBody, GenerationRequest, Prompt
from knn_logits_serve.decoding import Overheard, echo_of, processors, scored
from knn_logits_serve.line import Job
from knn_logits_serve.messages import NOTE
from knn_logits_serve.served import Served

# The most passages that are kept for a token, and the most of the likeliest tokens in its place.
PASSAGES, CANDIDATES = 3, 5


class AnswerWriter:
    """Turns tokens into the parts of an answer; what may begin a stop text is held back."""

    def __init__(
        self,
        served: Served,
        request: GenerationRequest,
        prompt: Prompt,
        choice: int,
        tell: Callable[[AnswerPart], None],
        overheard: Overheard | None = None,
        knn: KNNLogitsProcessor | None = None,
    ) -> None:
        self._knn = knn
        self._served, self._request, self._prompt = served, request, prompt
        self._choice, self._tell, self._overheard = choice, tell, overheard
        self._pieces = Pieces(served.tokenizer, prompt.ids)
        self._texts: list[str] = []
        self._unsure: list[Token] = []
        self._held: list[Piece] = []
        self.written, self.over = 0, False

    def add(self, token: int) -> None:
        """Takes the next token. After the end of the text it is ignored."""
        if self.over:
            return  # The token was drafted together with earlier ones, after the text's end.
        position = len(self._prompt.ids) + self.written
        self.written += 1
        if token in self._served.silent:
            return
        text = self._text(self._pieces.add(token))
        piece = Token(text)
        if self._overheard is not None:
            scores = self._overheard.at(position, token, self._request.logprobs or 0)
            piece = scored(self._served.tokenizer, text, *scores)
        self._unsure.append(piece)
        text = "".join(token.text for token in self._unsure)
        stops = self._request.body.stops
        end = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
        self.over = end is not None
        held = max((_overlap(text, stop) for stop in stops), default=0)
        self._release(len(text) - held if end is None else end)

    def end(self, ids: Tensor, *, cancelled: bool = False) -> End:
        """Tells the rest of the text, and returns the answer's end with its sources."""
        self.flush()
        trace, served = None, self._served
        if self._knn is not None and not cancelled:
            trace = self._knn.trace(
                ids,
                served.tokenizer,
                max_neighbors=PASSAGES,
                prompt=self._prompt.message,
            )[0]
            words = [token for token in trace.tokens if token.token_id not in served.silent]
            trace = replace(trace, tokens=words)
        reason = "stop" if self.over or int(ids[0, -1]) in served.ends else "length"
        text = "".join(self._texts)
        places = [at for stop in self._request.body.stops if (at := text.find(stop)) >= 0]
        text = text[: min(places, default=len(text))]
        offset = len(self._prompt.text) if self._request.echo else 0
        return End(self._choice, reason, self.written, text, trace, offset)

    def flush(self) -> None:
        self._release(sum(len(token.text) for token in self._unsure))
        if self._held:
            tokens = tuple(token for piece in self._held for token in piece.tokens)
            self._tell(Piece(self._choice, "".join(piece.text for piece in self._held), tokens))

    def _text(self, text: str) -> str:
        # Neither a chat's answer nor the target of a source continues a text.
        if self._prompt.opens and not any(self._texts):
            text = text.lstrip()
        self._texts.append(text)
        return text

    def _release(self, length: int) -> None:
        """Says the whole tokens within some characters; at a stop text also the cut one."""
        ready, used = 0, 0
        for token in self._unsure:
            if used >= length if self.over else used + len(token.text) > length:
                break
            used += len(token.text)
            ready += 1
        tokens, self._unsure = self._unsure[:ready], [] if self.over else self._unsure[ready:]
        self._say("".join(token.text for token in tokens)[:length], tuple(tokens))

    def _say(self, text: str, tokens: tuple[Token, ...]) -> None:
        piece = Piece(self._choice, text, tokens)
        # At each piece this thread and the event loop take turns, which costs more than the piece.
        # So only a stream gets each.
        if (text or tokens) and self._request.body.stream:
            self._tell(piece)
        elif text or tokens:
            self._held.append(piece)


def _overlap(text: str, stop: str) -> int:
    """How many characters at the text's end are the beginning of the stop text."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)


def run(served: Served, job: Job) -> None:
    """Writes all answers of a request, one after another."""
    request = job.request
    # Settings that do not fit are refused before a word is written.
    memory = served.memory_of(request) if request.stores else None
    if memory is not None and request.question is not None:
        job.tell(_ask(served, job, memory))
        return
    with _attached(served, request, memory if request.new_tokens else None) as knn:
        for choice, prompt in enumerate(request.prompts):
            if job.deadline.cancelled:
                return
            if request.echo:
                job.tell(Piece(choice, prompt.text, echo_of(served, request, prompt, memory)))
            if request.new_tokens:
                job.tell(_write_text(served, job, prompt, choice, knn))
            else:
                job.tell(End(choice, "length", 0, ""))


def _ask(served: Served, job: Job, memory: Memory) -> End:
    """Answers a question from the documents. Generated words are told one by one."""
    request = job.request
    prompt = request.prompts[0]
    writer = AnswerWriter(served, request, prompt, 0, job.tell)
    outside = request.body.outside if isinstance(request.body, ChatBody) else "decline"
    config = AskConfig(outside=outside, max_new_tokens=request.new_tokens)
    asking = Asking(served.model, served.tokenizer, memory, config)
    answer = asking.answer(
        request.question or "",
        request.history,
        TokenStream(writer.add),
        logits_processor=processors(request.sampling, 0, []),
        stopping_criteria=[_End(writer, job)],
    )
    text = f"{answer.text}{NOTE}{answer.note})" if answer.note else answer.text
    if writer.written:
        writer.flush()
    rest = text[len(answer.text) :] if writer.written else text
    if rest:
        job.tell(Piece(0, rest, ()))
    full = writer.written >= request.new_tokens
    tokens = writer.written or len(answer.tokens)
    return End(0, "length" if full else "stop", tokens, text, answer=answer)


def _attached(
    served: Served, request: GenerationRequest, memory: Memory | None
) -> AbstractContextManager[KNNLogitsProcessor | None]:
    """Attaches the memory of a request, if any, to the model."""
    if memory is None:
        return nullcontext()
    # The likeliest tokens cost a tenth of an answer's time, and only a drawn answer shows them.
    candidates = CANDIDATES if request.drawn else 0
    knn = KNNLogitsProcessor(served.model, memory, candidates=candidates)
    if request.schema is not None:
        knn.loop_size = None  # an answer that is ended within a loop has not the form
    return knn


class _End(StoppingCriteria):
    """Ends a text at its stop text, or when nobody reads it."""

    def __init__(self, writer: AnswerWriter, job: Job) -> None:
        self._writer, self._job = writer, job

    def __call__(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        over = self._writer.over or self._job.deadline.over
        return torch.full((len(input_ids),), over, device=input_ids.device)


def _write_text(
    served: Served,
    job: Job,
    prompt: Prompt,
    choice: int,
    knn: KNNLogitsProcessor | None,
) -> End:
    request = job.request
    overheard = Overheard() if request.logprobs is not None else None
    writer = AnswerWriter(served, request, prompt, choice, job.tell, overheard, knn)
    first: list[Any] = [processor for processor in (knn, overheard) if processor is not None]
    mask = None if request.schema is None else served.grammars.mask(request.schema)
    pad = served.tokenizer.pad_token_id
    # A processor drafts passages, which gives the same text in fewer forward passes.
    generate = served.model.generate if knn is None else knn.generate
    output = generate(
        **prompt.inputs,
        pad_token_id=min(served.ends, default=0) if pad is None else pad,
        do_sample=False,
        num_beams=1,
        max_new_tokens=request.new_tokens,
        logits_processor=processors(request.sampling, choice, first, mask),
        stopping_criteria=[_End(writer, job)],
        streamer=TokenStream(writer.add),
    )
    return writer.end(output, cancelled=job.deadline.cancelled)
