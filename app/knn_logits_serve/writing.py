"""Writes the answers of a request, in a thread of its own.

A text ends at its end token, at its stop text, at its number of tokens, or when its client goes
away.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from knn_logits import AskConfig, Asking, KNNLogitsError, KNNLogitsProcessor, Memory, explain
from knn_logits.errors import LimitError
from knn_logits.hosting import Deadline, Pieces
from knn_logits_app.decoding import TokenStream, samplers
from knn_logits_serve.answers import AnswerPart, End, Piece, Token
from knn_logits_serve.bodies import (
    ChatBody,
    GenerationRequest,
    Prompt,
    Refusal,
    Sampling,
    refusal_of,
)
from knn_logits_serve.messages import NOTE
from knn_logits_serve.served import Served

# The most passages that are kept for a token, and the most of the likeliest tokens in its place.
PASSAGES, CANDIDATES = 3, 5
# The log-probability of an impossible token, since JSON has no infinity.
IMPOSSIBLE = -9999.0

logger = logging.getLogger("knn_logits.serve")


def log_failure(error: Exception) -> None:
    """Logs an error in one line."""
    line = " ".join(str(error).split())
    logger.error("a request failed: %s: %s", type(error).__name__, line[:300])


class Job:
    """A request that waits or runs."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.future: Future[None]
        # The last part is None, or a refusal if the request failed.
        self.news: asyncio.Queue[AnswerPart | Refusal | None] = asyncio.Queue()
        self.deadline = Deadline()
        self._loop = asyncio.get_running_loop()

    def tell(self, part: AnswerPart | Refusal | None) -> None:
        """Adds a part of the answer, from any thread."""
        self._loop.call_soon_threadsafe(self.news.put_nowait, part)

    def leave(self) -> None:
        """Ends the request, which nobody reads any more, while it waits or runs."""
        self.deadline.cancel()
        if self.future.cancel():
            self.news.put_nowait(None)


class Overheard(LogitsProcessor):
    """Keeps the distributions of the latest positions, until `at` names the tokens chosen there."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._rows[input_ids.shape[1]] = scores
        return scores

    def at(self, position: int, token: int, number: int) -> tuple[float, list[tuple[int, float]]]:
        """Returns the log-probability of a token, and the likeliest tokens in its place."""
        row = self._rows[position][0]
        for step in [step for step in self._rows if step <= position]:
            del self._rows[step]
        return _likeliest(row, token, number)


def _likeliest(scores: Tensor, token: int, number: int) -> tuple[float, list[tuple[int, float]]]:
    row = torch.log_softmax(scores.float(), dim=-1).clamp(min=IMPOSSIBLE)
    best = row.topk(min(number, len(row)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return float(row[token]), list(pairs)


def processors(sampling: Sampling, choice: int, first: list[Any]) -> list[Any]:
    """Returns the processors of one text, in their order; `first` mixes or reads probabilities."""
    chain = list(first)
    if sampling.temperature > 0:
        temperature, seed = max(sampling.temperature, 1e-4), sampling.seed + choice
        chain += samplers(seed, temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    return chain


def echo_of(
    served: Served, request: GenerationRequest, prompt: Prompt, memory: Memory | None
) -> tuple[Token, ...]:
    """Returns a prompt's tokens, all but the first with the probabilities asked for."""
    ids, tokenizer = prompt.ids, served.tokenizer
    pieces = Pieces(tokenizer, [])
    texts = [pieces.add(token) for token in ids]
    number = request.logprobs
    if number is None or len(ids) < 2:
        return tuple(Token(text) for text in texts)
    if memory is None:
        with torch.no_grad():
            rows = served.model(torch.tensor([ids], device=served.model.device)).logits[0, :-1]
        tokens = [Token(texts[0])]
        for text, token, row in zip(texts[1:], ids[1:], rows, strict=True):
            tokens.append(scored(tokenizer, text, *_likeliest(row, token, number)))
        return tuple(tokens)
    trace = explain(served.model, tokenizer, memory, ids, max_neighbors=0, candidates=number)[0]
    tokens = [Token(texts[0])]
    for text, traced in zip(texts[1:], trace.tokens, strict=True):
        if traced.p is None:
            raise LimitError("the prompt is too long to compute its probabilities: shorten it")
        best_of = sorted(traced.candidates, key=lambda candidate: -candidate.p)[:number]
        likeliest = tuple((candidate.token, _log(candidate.p)) for candidate in best_of)
        tokens.append(Token(text, _log(traced.p), likeliest))
    return tuple(tokens)


def _log(p: float) -> float:
    return math.log(p) if p > 0 else IMPOSSIBLE


def scored(tokenizer: Any, text: str, logprob: float, likeliest: list[tuple[int, float]]) -> Token:
    """Makes a token with its log-probability and the texts of the likeliest tokens."""
    decode = tokenizer.decode
    pairs = [
        (str(decode([token], clean_up_tokenization_spaces=False)), p) for token, p in likeliest
    ]
    return Token(text, logprob, tuple(pairs))


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
                ids, served.tokenizer, max_neighbors=PASSAGES, prompt=self._prompt.message
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
    """Writes all answers of a request, one after another, and tells the end or a refusal."""
    ended = None
    try:
        if not job.deadline.cancelled:
            _write(served, job)
    except Exception as error:
        if not isinstance(error, KNNLogitsError) and not job.deadline.cancelled:
            log_failure(error)
        ended = refusal_of(error)
    job.tell(ended)


def _write(served: Served, job: Job) -> None:
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
    return KNNLogitsProcessor(served.model, memory, candidates=candidates)


class _End(StoppingCriteria):
    """Ends a text at its stop text, or when nobody reads it."""

    def __init__(self, writer: AnswerWriter, job: Job) -> None:
        self._writer, self._job = writer, job

    def __call__(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        over = self._writer.over or self._job.deadline.over
        return torch.full((len(input_ids),), over, device=input_ids.device)


def _write_text(
    served: Served, job: Job, prompt: Prompt, choice: int, knn: KNNLogitsProcessor | None
) -> End:
    request = job.request
    overheard = Overheard() if request.logprobs is not None else None
    writer = AnswerWriter(served, request, prompt, choice, job.tell, overheard, knn)
    first: list[Any] = [processor for processor in (knn, overheard) if processor is not None]
    pad = served.tokenizer.pad_token_id
    # A processor drafts passages, which gives the same text in fewer forward passes.
    generate = served.model.generate if knn is None else knn.generate
    with served.prompts.read(prompt.ids) as inputs:
        output = generate(
            **inputs,
            pad_token_id=min(served.ends, default=0) if pad is None else pad,
            do_sample=False,
            num_beams=1,
            max_new_tokens=request.new_tokens,
            logits_processor=processors(request.sampling, choice, first),
            stopping_criteria=[_End(writer, job)],
            streamer=TokenStream(writer.add),
        )
    return writer.end(output, cancelled=job.deadline.cancelled)
