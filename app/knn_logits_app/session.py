"""Runs a request on the models and datastores, and returns its text and trace.

A session keeps nothing of a visitor. The datastores that a visitor built come with each call as
`own`.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from transformers import LogitsProcessor

from knn_logits import (
    Datastore,
    Deadline,
    KNNLogitsError,
    KNNLogitsProcessor,
    LimitError,
    Limits,
    Memory,
    Pieces,
    Trace,
    explain,
)
from knn_logits_app.library import Library
from knn_logits_app.live import Live, Shown, texts
from knn_logits_app.reading import Given
from knn_logits_app.requests import Lookup, RequestError, Writing
from knn_logits_app.sampling import samplers
from knn_logits_app.streaming import SentenceEnd, TokenStream
from knn_logits_app.traced import END, named, words_only

# How many of the likeliest tokens of each step the trace names.
CANDIDATES = 5
SIGNS = ("λ", "τ", "k", "p")
_FRAME_SECONDS = 0.06


class Piece(NamedTuple):
    """The text that one token adds to an answer.

    Attributes:
        text: The text of the token.
        share: The neighbors' share in the token's probability.
        changed: Whether the model alone would have chosen another token.
    """

    text: str
    share: float
    changed: bool = False


@dataclass(frozen=True)
class Answer:
    """An answer, as far as it is written.

    Attributes:
        prompt: The prompt that the answer continues; empty for an encoder-decoder model.
        begun: The beginning of the answer, if the request gave one.
        words: The pieces that were written.
        knn: Whether the neighbors took part.
        done: Whether the answer is finished.
        trace: The sources of the whole answer; None without kNN.
        stopped: Why the answer ended early; None if it did not.
        tokens: Number of tokens that were written.
        seconds: Seconds that the writing took, without the trace.
        passes: Number of forward passes of the model; None if they were not counted.
        metric: The metric of the datastores.
        live: The neighbors of each step, for the browser; None if they are too many to send.
    """

    prompt: str
    begun: str = ""
    words: tuple[Piece, ...] = ()
    knn: bool = False
    done: bool = False
    trace: Trace | None = None
    stopped: str | None = None
    tokens: int = 0
    seconds: float = 0.0
    passes: int | None = None
    metric: str = "l2"
    live: tuple[dict[str, Any], list[Shown]] | None = None

    @property
    def text(self) -> str:
        """The text of the answer, with the beginning that was given."""
        return self.begun + "".join(one.text for one in self.words)


@dataclass
class Session:
    """The models that a server runs.

    Attributes:
        libraries: The models with their datastores, by name. The page opens with the first.
        limits: The limits of every request.
        threads: CPU threads of a search while a datastore is built.
    """

    libraries: Mapping[str, Library]
    limits: Limits = field(default_factory=Limits)
    threads: int = 1

    @property
    def first(self) -> Library:
        """The library with which the page opens."""
        return next(iter(self.libraries.values()))

    def library(self, name: str | None) -> Library:
        """Returns the library of a name, or the first one for None.

        Raises:
            RequestError: when no model has that name.
        """
        if name is None:
            return self.first
        found = self.libraries.get(name) if isinstance(name, str) else None
        if found is None:
            raise RequestError(f"There is no model of that name: choose {self._names()}.")
        return found

    def _names(self) -> str:
        return " or ".join(self.libraries)

    def stores(
        self, library: Library, lookup: Lookup, own: Mapping[str, Datastore] | None = None
    ) -> list[Datastore]:
        """Returns the datastores that a request names.

        Raises:
            RequestError: when this visitor has no datastore of one of the names.
        """
        known = {**library.stores, **(own or {})}
        missing = [name for name in lookup.stores if name not in known]
        if missing:
            raise RequestError(
                "There is no such datastore here (any more): choose " + ", ".join(known) + "."
            )
        return [known[name] for name in lookup.stores]

    def settings(self, library: Library, lookup: Lookup) -> dict[str, Any]:
        """Returns a request's settings for a memory; None takes the first datastore's setting."""
        gate = library.gates.get(lookup.stores[0]) if len(lookup.stores) == 1 else None
        return {
            "k": lookup.k,
            "lmbda": gate if gate is not None and lookup.gate else lookup.lmbda,
            "temperature": lookup.temperature,
            "exclude": list(lookup.without) or None,
        }

    def check_writing(
        self, library: Library, wanted: Writing, own: Mapping[str, Datastore] | None = None
    ) -> tuple[Given, list[Datastore]]:
        """Refuses a request that is not allowed, before anything runs.

        Returns:
            The input of the model, and the datastores.
        """
        given = library.reading.prompt(wanted.prompt, self.limits, wanted.new_tokens, wanted.begun)
        return given, self.stores(library, wanted.lookup, own) if wanted.lookup else []

    def write(
        self,
        library: Library,
        wanted: Writing,
        deadline: Deadline,
        own: Mapping[str, Datastore] | None = None,
    ) -> Iterator[dict[str, Answer]]:
        """Continues a text, or writes the target of a source.

        With `compare` the answers with and without kNN are written at the same time.

        Args:
            library: The model.
            wanted: The request.
            deadline: Ends the writing early. It is cancelled when the caller stops reading.
            own: The visitor's datastores.

        Yields:
            The answers so far: "lm" is the model's own, and "knn" the one with neighbors.
        """
        given, stores = self.check_writing(library, wanted, own)
        sides = ["knn"] if wanted.lookup else ["lm"]
        if wanted.compare:
            sides = ["lm", "knn"]
        news: queue.Queue[tuple[str, Answer | BaseException]] = queue.Queue()
        for side in sides:
            arguments = (library, wanted, given, stores if side == "knn" else [], deadline)
            threading.Thread(
                target=self._run, args=(side, news, *arguments), name=f"write-{side}", daemon=True
            ).start()
        answers = {side: Answer(given.shown, given.begun, knn=side == "knn") for side in sides}
        try:
            while not all(answer.done for answer in answers.values()):
                side, what = news.get()
                if isinstance(what, BaseException):
                    raise what
                answers[side] = what
                # All answers that are waiting go into one frame.
                while not news.empty():
                    side, what = news.get()
                    if isinstance(what, BaseException):
                        raise what
                    answers[side] = what
                yield dict(answers)
        finally:
            deadline.cancel()

    def _run(self, side: str, news: queue.Queue[Any], *arguments: Any) -> None:
        try:
            self._write_one(lambda answer: news.put((side, answer)), *arguments)
        except BaseException as error:
            news.put((side, error))

    def _write_one(
        self,
        tell: Callable[[Answer], None],
        library: Library,
        wanted: Writing,
        given: Given,
        stores: list[Datastore],
        deadline: Deadline,
    ) -> None:
        tokenizer = library.tokenizer
        reading = library.reading
        with ExitStack() as stack:
            processors: list[LogitsProcessor] = []
            knn, live = None, None
            if stores and wanted.lookup:
                settings = self.settings(library, wanted.lookup)
                knn = stack.enter_context(
                    KNNLogitsProcessor(
                        library.model,
                        library.memory.over(stores),
                        candidates=CANDIDATES,
                        **settings,
                    )
                )
                processors.append(knn)
                live = Live(knn.memory, greedy=not wanted.sample)
            if wanted.sample:
                processors += samplers(wanted.seed, wanted.sampling_temperature, wanted.top_p)
            pieces = Pieces(tokenizer, given.ids[0].tolist())
            words: list[Piece] = []
            # The first word is shown at once, and the next ones as often as a reader can follow.
            started, last = time.monotonic(), -math.inf
            so_far = Answer(given.shown, given.begun, knn=knn is not None)

            def on_token(token: int) -> None:
                nonlocal last
                if token in reading.silent:
                    return
                share, changed = 0.0, False
                vote = knn.vote if knn else None
                if vote is not None and live is not None:
                    share = vote.influence(0, token)
                    changed = int(vote.log_p_lm[0].argmax()) != token
                    live.add(vote, [token])
                written = bool(given.begun) or any(one.text for one in words)
                words.append(Piece(reading.begins(pieces.add(token), written), share, changed))
                now = time.monotonic()
                if now - last >= _FRAME_SECONDS:
                    last = now
                    tell(replace(so_far, words=tuple(words), tokens=len(words)))

            criteria: list[Any] = [deadline]
            if wanted.one_sentence:
                criteria.append(SentenceEnd(tokenizer, given.ids.shape[1]))
            pad = tokenizer.pad_token_id
            write = knn.generate if knn else library.model.generate
            output = write(
                **given.inputs,
                **reading.settings,
                max_new_tokens=wanted.new_tokens,
                do_sample=False,
                num_beams=1,
                pad_token_id=pad if pad is not None else (sorted(reading.silent) or [0])[0],
                logits_processor=processors,
                stopping_criteria=criteria,
                streamer=TokenStream(on_token),
            )
            seconds = time.monotonic() - started
            stopped = None
            if deadline.over and len(words) < wanted.new_tokens:
                stopped = "stopped" if deadline.cancelled else "the time is up"
            answer = replace(
                so_far, words=tuple(words), stopped=stopped, tokens=len(words), seconds=seconds,
                passes=knn.passes + 1 if knn else None, metric=live.metric if live else "l2",
            )  # fmt: skip
            if knn is None or live is None or wanted.lookup is None:
                tell(replace(answer, done=True))
                return
            # The text is shown at once, since the trace takes a moment longer.
            tell(answer)
            trace = knn.trace(output, tokenizer, max_neighbors=wanted.lookup.max_neighbors)
            names = _names(knn.memory, wanted.lookup)
            trace = words_only(Trace([named(trace[0], names)]), reading.silent)
            packed = live.packed(texts(tokenizer, reading.silent, END), names)
            tell(replace(answer, done=True, trace=trace, live=packed))

    def explain(
        self,
        library: Library,
        text: str,
        lookup: Lookup,
        own: Mapping[str, Datastore] | None = None,
        source: str | None = None,
    ) -> Answer:
        """Finds the sources of a text that exists already.

        Args:
            library: The model.
            text: The text.
            lookup: The datastores and settings.
            own: The visitor's datastores.
            source: The source of the text, for an encoder-decoder model.
        """
        reading = library.reading
        reading.whole(text, source, self.limits)
        stores = self.stores(library, lookup, own)
        settings = self.settings(library, lookup)
        started = time.monotonic()
        memory = library.memory.over(stores).asked(scoring=True, **settings)
        live = Live(memory, greedy=False)
        trace = explain(
            library.model,
            library.tokenizer,
            memory,
            text,
            source=source,
            max_neighbors=lookup.max_neighbors,
            candidates=CANDIDATES,
            on_vote=live.add,
        )
        names = _names(memory, lookup)
        trace = words_only(Trace([named(trace[0], names)]), reading.silent)
        words: list[Piece] = []
        for token in trace[0].tokens:
            written = any(one.text for one in words)
            words.append(Piece(reading.begins(token.token, written), token.influence))
        return Answer(
            trace[0].prompt,
            words=tuple(words),
            knn=True,
            done=True,
            trace=trace,
            tokens=len(words),
            seconds=time.monotonic() - started,
            metric=live.metric,
            live=live.packed(texts(library.tokenizer, reading.silent, END), names),
        )


def _names(memory: Memory, lookup: Lookup) -> dict[str, str]:
    """The names of the datastores on the page, by their names in a trace."""
    return dict(zip(memory.names, lookup.stores, strict=True))


def friendly(error: BaseException) -> str:
    """Returns one line about an error for a visitor, without a path or a traceback."""
    if isinstance(error, (RequestError, LimitError)):
        text = " ".join(str(error).split())
    elif isinstance(error, KNNLogitsError):
        text = " ".join(str(error).split())
        if "/" in text or "\\" in text:
            text = f"this failed ({type(error).__name__}): change the settings or the text"
    else:
        text = "the server failed on this request: try again with less text"
    # The sign of a setting keeps its case, since λ is not Λ.
    if text.split(" ", 1)[0] not in SIGNS:
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
