"""Runs a request on the model and its datastores, and returns its text and trace.

A session keeps nothing of a visitor: the datastores that a visitor built come with each call as
`private`.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knn_logits import Datastore, KNNLogitsProcessor, Memory, Trace, explain
from knn_logits.hosting import Deadline, Limits, Pieces, Vote
from knn_logits_app.decoding import SentenceEnd, TokenStream, samplers
from knn_logits_app.library import Library
from knn_logits_app.requests import Lookup, RequestError, Writing

# The passages that the trace has of each token, and the likeliest tokens that it names.
PASSAGES, CANDIDATES = 3, 5
# The text that is shown for a token that ends a text.
END = "(the end)"
FRAME_SECONDS = 0.06
_LOOK_SECONDS = 0.1
# Maximum number of tokens in a word. Where blanks are further apart, a text stays as it is.
_MOST_PIECES = 12
_END_OF_RUN = object()

Stores = Mapping[str, Datastore]


class Piece(NamedTuple):
    """The text that one token adds to an answer."""

    text: str
    share: float
    changed: bool = False


@dataclass(frozen=True)
class Answer:
    """An answer, as far as it is written."""

    prompt: str
    words: tuple[Piece, ...] = ()
    knn: bool = False
    done: bool = False
    trace: Trace | None = None
    stopped: str | None = None  # why the answer ended early
    tokens: int = 0
    seconds: float = 0.0  # without the trace
    gated: bool = False  # whether a gate set λ
    turns: tuple[list[tuple[str, float, str]], ...] = ()  # of each token, with the others' texts

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.words)


@dataclass
class Session:
    """The model that a server runs."""

    library: Library
    limits: Limits = field(default_factory=Limits)

    def stores(self, lookup: Lookup, private: Stores | None = None) -> dict[str, Datastore]:
        """Returns the datastores that a request names, by their names on the page."""
        self.library.refresh()
        stores = {**self.library.stores, **(private or {})}
        if not stores.keys() >= set(lookup.stores):
            names = ", ".join(stores)
            raise RequestError(f"This datastore is not available (any more): choose {names}.")
        return {name: stores[name] for name in lookup.stores}

    def write(
        self, writing: Writing, deadline: Deadline, private: Stores | None = None
    ) -> Iterator[dict[str, Answer]]:
        """Continues a text, with `compare` also without kNN, until nobody reads."""
        library = self.library
        ids = library.reader.prompt(writing.prompt, self.limits, writing.new_tokens)
        memory = library.memory.over(self.stores(writing.lookup, private))
        memories: dict[str, Memory | None] = {"lm": None} if writing.compare else {}
        memories["knn"] = memory
        answers = {side: Answer(writing.prompt, knn=side == "knn") for side in memories}
        runs = {
            f"write-{side}": partial(_write, library, writing, ids, memory, deadline, side)
            for side, memory in memories.items()
        }
        for steps in emitted(runs, deadline):
            # All answers that are waiting go into one frame.
            answers.update(steps)
            if steps:
                yield dict(answers)

    def explain(
        self, text: str, lookup: Lookup, deadline: Deadline, private: Stores | None = None
    ) -> Answer:
        """Finds the sources of a text."""
        library = self.library
        library.reader.check_text(text, self.limits)
        memory = library.memory.over(self.stores(lookup, private)).asked(**settings_of(lookup))
        trace = explain(
            library.model, library.tokenizer, memory, text,
            max_neighbors=PASSAGES, candidates=CANDIDATES, progress=deadline.watch(),
        )  # fmt: skip
        trace = words_only(trace, library)
        return Answer(
            trace[0].prompt,
            knn=True,
            done=True,
            trace=trace,
            tokens=len(trace[0].tokens),
            gated=memory.gate is not None,
        )


def settings_of(lookup: Lookup) -> dict[str, Any]:
    """Returns a request's settings for a memory."""
    return {**lookup.settings, "exclude": list(lookup.without) or None}


def _write(
    library: Library,
    writing: Writing,
    ids: Tensor,
    memory: Memory | None,
    deadline: Deadline,
    side: str,
    emit: Callable[[tuple[str, Answer]], None],
) -> None:
    """Writes one answer, and passes it on as it grows."""
    tokenizer, reader, lookup = library.tokenizer, library.reader, writing.lookup
    with ExitStack() as stack:
        knn, turns = None, list[list[tuple[str, float, str]]]()
        if memory is not None:
            settings = settings_of(lookup)
            knn = KNNLogitsProcessor(library.model, memory, candidates=CANDIDATES, **settings)
            stack.enter_context(knn)
        pieces = Pieces(tokenizer, ids[0].tolist())
        words: list[Piece] = []
        # The first word is shown at once, and the next ones as often as a reader can follow.
        started, last = time.monotonic(), -math.inf
        answer = Answer(writing.prompt, knn=knn is not None)

        def on_token(token: int) -> None:
            nonlocal last
            if token in reader.silent:
                return
            share, changed, turned = 0.0, False, list[tuple[str, float, int]]()
            vote = knn.vote if knn else None
            if vote is not None:
                share = vote.influence(0, token)
                changed = int(vote.log_p_lm[0].argmax()) != token
                turned = [] if writing.sampling_temperature else turns_of(vote, token)
            turns.append([(edge, at, word_of(library, other)) for edge, at, other in turned])
            words.append(Piece(pieces.add(token), share, changed))
            now = time.monotonic()
            if now - last >= FRAME_SECONDS:
                last = now
                emit((side, replace(answer, words=tuple(words), tokens=len(words))))

        output = _generate(library, writing, ids, knn, deadline, on_token)
        stopped = None
        itself = int(output[0, -1]) in reader.silent or len(words) == writing.new_tokens
        if deadline.over and not itself:
            stopped = "stopped" if deadline.cancelled else "the time is up"
            # The last word may be a part of one, such as a number that ends at its point.
            ends = range(len(words) - 1, max(0, len(words) - _MOST_PIECES), -1)
            whole = next((n for n in ends if words[n].text[:1].isspace()), len(words))
            del words[whole:]
            output = output[:, : ids.shape[1] + whole]
        answer = replace(
            answer, words=tuple(words), stopped=stopped, tokens=len(words),
            seconds=time.monotonic() - started,
        )  # fmt: skip
        if knn is not None:
            # The text is shown at once, since the trace takes a moment longer.
            emit((side, answer))
            trace = knn.trace(output, tokenizer, max_neighbors=PASSAGES)
            answer = replace(
                answer,
                trace=words_only(trace, library),
                turns=tuple(turns),
                gated=knn.memory.gate is not None,
            )
        emit((side, replace(answer, done=True)))


def _generate(
    library: Library,
    writing: Writing,
    ids: Tensor,
    knn: KNNLogitsProcessor | None,
    deadline: Deadline,
    on_token: Callable[[int], None],
) -> Any:
    tokenizer, silent = library.tokenizer, library.reader.silent
    processors: list[Any] = [knn] if knn else []
    if writing.sampling_temperature:
        processors += samplers(writing.seed, writing.sampling_temperature)
    if writing.sentence and silent:
        processors.append(SentenceEnd(tokenizer, ids.shape[1], silent))
    pad = tokenizer.pad_token_id
    generate = library.model.generate
    if knn:
        # Passes with drafts round otherwise, and with λ 0 the text has to be the model's own.
        generate = partial(knn.generate, draft=not knn.memory.is_off)
    return generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=writing.new_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=pad if pad is not None else (sorted(silent) or [0])[0],
        logits_processor=processors,
        stopping_criteria=[deadline],
        streamer=TokenStream(on_token),
    )


def turns_of(vote: Vote, token: int) -> list[tuple[str, float, int]]:
    """Finds where another token becomes likelier than the chosen one, in the first row of a vote.

    The p of a token is a line over λ, and the likeliest token changes where two lines cross.

    Returns:
        "from" or "below", the λ from which on or below which it is so, and the other token.
    """
    if not vote.neighbors.k or not bool(vote.log_weights[0].isfinite().any()):
        return []
    lmbda, p_lm = float(vote.lmbdas[0]), vote.log_p_lm[0].double().exp()
    weights = vote.log_weights[0].double().exp()
    rise = torch.zeros_like(p_lm).scatter_add_(0, vote.neighbors.values[0], weights) - p_lm
    p = p_lm + lmbda * rise
    cross = ((p_lm[token] - p_lm) / (rise - rise[token])).masked_fill(p > p[token], math.nan)
    turns = []
    for edge, beyond, sign in (
        ("from", (cross >= lmbda) & (cross < 1), 1),
        ("below", (cross <= lmbda) & (cross > 0), -1),
    ):
        if bool(beyond.any()):
            other = int((sign * cross).masked_fill(~beyond, math.inf).argmin())
            turns.append((edge, float(cross[other]), other))
    return turns


def word_of(library: Library, token: int) -> str:
    """The text of a token that stands alone."""
    if token in library.reader.silent:
        return END
    return str(library.tokenizer.decode([token], clean_up_tokenization_spaces=False))


def words_only(trace: Trace, library: Library) -> Trace:
    """Removes the special tokens from a trace. Among candidates they are called `END`."""
    sequence, silent = trace[0], library.reader.silent
    tokens = [
        replace(
            token,
            candidates=[
                replace(candidate, token=END) if candidate.token_id in silent else candidate
                for candidate in token.candidates
            ],
        )
        for token in sequence.tokens
        if token.token_id not in silent
    ]
    return Trace([replace(sequence, tokens=tokens)], trace.stores)


def emitted(
    runs: Mapping[str, Callable[[Callable[[Any], None]], None]], deadline: Deadline
) -> Iterator[list[Any]]:
    """Runs functions, each in a thread of its name, and yields what they emit until all end.

    Each list has everything that waits, and is empty if nothing came for a tenth of a second. When
    nobody reads on, the deadline is cancelled. The iterator ends when the threads have ended.
    """
    news: queue.Queue[Any] = queue.Queue()

    def body(run: Callable[[Callable[[Any], None]], None]) -> None:
        try:
            run(news.put)
            news.put(_END_OF_RUN)
        except BaseException as error:
            news.put(error)

    threads = [
        threading.Thread(target=body, args=[run], name=name, daemon=True)
        for name, run in runs.items()
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            steps = []
            with contextlib.suppress(queue.Empty):
                steps.append(news.get(timeout=_LOOK_SECONDS))
            steps += [news.get() for _ in range(news.qsize())]
            for step in steps:
                if isinstance(step, BaseException):
                    raise step
                running -= step is _END_OF_RUN
            yield [step for step in steps if step is not _END_OF_RUN]
    finally:
        deadline.cancel()
        for thread in threads:
            thread.join()
