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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knn_logits import Datastore, KNNLogitsProcessor, Memory, Trace, explain
from knn_logits.hosting import Deadline, Limits, Pieces
from knn_logits_app.decoding import SentenceEnd, TokenStream, samplers
from knn_logits_app.library import Library
from knn_logits_app.live import Live, Shown
from knn_logits_app.requests import Lookup, RequestError, Writing

# How many of the likeliest tokens of each step the trace names.
CANDIDATES = 5
# The text that is shown for a token that ends a text.
END = "(the end)"
FRAME_SECONDS = 0.06
_LOOK_SECONDS = 0.1
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
    metric: str = "l2"
    adaptive: bool = False  # whether an adaptive gate set λ
    live: tuple[dict[str, Any], list[Shown]] | None = None

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
        stores = self.stores(writing.lookup, private) if writing.lookup else {}
        memories: dict[str, Memory | None] = {}
        if writing.compare or not stores:
            memories["lm"] = None
        if stores:
            memories["knn"] = library.memory.over(stores)
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

    def explain(self, text: str, lookup: Lookup, private: Stores | None = None) -> Answer:
        """Finds the sources of a text."""
        library = self.library
        library.reader.check_text(text, self.limits)
        memory = library.memory.over(self.stores(lookup, private))
        started = time.monotonic()
        memory = memory.asked(**settings_of(lookup))
        live = Live(memory, greedy=False)
        trace = explain(
            library.model, library.tokenizer, memory, text,
            max_neighbors=lookup.max_neighbors, candidates=CANDIDATES, on_vote=live.add,
        )  # fmt: skip
        trace, packed = _for_page(trace, live, library)
        words = tuple(Piece(token.token, token.influence) for token in trace[0].tokens)
        return Answer(
            trace[0].prompt,
            words=words,
            knn=True,
            done=True,
            trace=trace,
            tokens=len(words),
            seconds=time.monotonic() - started,
            metric=live.metric,
            live=packed,
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
        knn, live = None, None
        if memory is not None and lookup is not None:
            settings = settings_of(lookup)
            knn = KNNLogitsProcessor(library.model, memory, candidates=CANDIDATES, **settings)
            stack.enter_context(knn)
            live = Live(knn.memory, greedy=not writing.sample)
        pieces = Pieces(tokenizer, ids[0].tolist())
        words: list[Piece] = []
        # The first word is shown at once, and the next ones as often as a reader can follow.
        started, last = time.monotonic(), -math.inf
        answer = Answer(writing.prompt, knn=knn is not None)

        def on_token(token: int) -> None:
            nonlocal last
            if token in reader.silent:
                return
            share, changed = 0.0, False
            vote = knn.vote if knn else None
            if vote is not None and live is not None:
                share = vote.influence(0, token)
                changed = int(vote.log_p_lm[0].argmax()) != token
                live.add(vote, [token])
            words.append(Piece(pieces.add(token), share, changed))
            now = time.monotonic()
            if now - last >= FRAME_SECONDS:
                last = now
                emit((side, replace(answer, words=tuple(words), tokens=len(words))))

        output = _generate(library, writing, ids, knn, deadline, on_token)
        stopped = None
        if deadline.over and len(words) < writing.new_tokens:
            stopped = "stopped" if deadline.cancelled else "the time is up"
        answer = replace(
            answer, words=tuple(words), stopped=stopped, tokens=len(words),
            seconds=time.monotonic() - started,
            metric=live.metric if live else "l2",
            adaptive=live is not None and live.adaptive,
        )  # fmt: skip
        if knn is not None and live is not None and lookup is not None:
            # The text is shown at once, since the trace takes a moment longer.
            emit((side, answer))
            trace = knn.trace(output, tokenizer, max_neighbors=lookup.max_neighbors)
            trace, packed = _for_page(trace, live, library)
            answer = replace(answer, trace=trace, live=packed)
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
    if writing.sample:
        processors += samplers(writing.seed, writing.sampling_temperature, writing.top_p)
    criteria: list[Any] = [deadline]
    if writing.sentence:
        criteria.append(SentenceEnd(tokenizer, ids.shape[1]))
    pad = tokenizer.pad_token_id
    generate = knn.generate if knn else library.model.generate
    return generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=writing.new_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=pad if pad is not None else (sorted(silent) or [0])[0],
        logits_processor=processors,
        stopping_criteria=criteria,
        streamer=TokenStream(on_token),
    )


def _for_page(
    trace: Trace, live: Live, library: Library
) -> tuple[Trace, tuple[dict[str, Any], list[Shown]] | None]:
    """Returns a trace without special tokens, and the packed steps."""
    silent, decode = library.reader.silent, library.tokenizer.decode

    def token_text(token: int) -> str:
        return END if token in silent else str(decode([token], clean_up_tokenization_spaces=False))

    return words_only(trace, silent), live.packed(token_text)


def words_only(trace: Trace, silent: Collection[int]) -> Trace:
    """Removes the special tokens from a trace. Among candidates they are called `END`."""
    sequence = trace[0]
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
