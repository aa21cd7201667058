"""From a request to text and trace: the models, the datastores, and what runs on them.

Nothing of a visitor is kept here. What a visitor built comes with each call as `own`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import LogitsProcessor

from knn_logits import (
    Datastore,
    Deadline,
    KNNLogitsError,
    KNNLogitsProcessor,
    LimitError,
    Limits,
    Trace,
    explain,
    generation_settings,
)
from knn_logits_app.memory import Memory
from knn_logits_app.reading import Given
from knn_logits_app.requests import Lookup, RequestError, Writing
from knn_logits_app.sampling import Candidate, NotedGate, Watched, samplers
from knn_logits_app.streaming import Pieces, SentenceEnd, TokenStream
from knn_logits_app.traced import candidates_of, named, words_only

# Passages shown for a token.
PASSAGES = 3
SIGNS = ("λ", "τ", "k", "p")
_FRAME_SECONDS = 0.06


@dataclass(frozen=True)
class Answer:
    """A text as far as it is written.

    Attributes:
        prompt: What it goes on from; empty where it begins a text of its own.
        words: Pieces of text with the neighbors' share in each, while it is written.
        knn: Whether the neighbors had a say.
        done: Whether it is whole.
        trace: Sources of the whole text; None without kNN.
        candidates: What might have stood at each token of the trace.
        stopped: Why it ended early, if it did.
        tokens: Tokens written.
        seconds: How long the writing took, the trace not counted.
    """

    prompt: str
    words: tuple[tuple[str, float], ...] = ()
    knn: bool = False
    done: bool = False
    trace: Trace | None = None
    candidates: tuple[Sequence[Candidate], ...] = ()
    stopped: str | None = None
    tokens: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What was written."""
        return "".join(word for word, _ in self.words)


@dataclass
class Session:
    """The models that a server runs.

    Attributes:
        memories: By name; the first is what a visitor sees first.
        limits: Of every request.
        threads: CPU threads of a search.
    """

    memories: Mapping[str, Memory]
    limits: Limits = field(default_factory=Limits)
    threads: int = 1

    @property
    def first(self) -> Memory:
        """What a visitor sees first."""
        return next(iter(self.memories.values()))

    def memory(self, name: str | None) -> Memory:
        """A model by name.

        Raises:
            RequestError: when there is none of that name.
        """
        if name is None:
            return self.first
        found = self.memories.get(name) if isinstance(name, str) else None
        if found is None:
            raise RequestError(f"There is no model of that name; choose {self._names()}.")
        return found

    def _names(self) -> str:
        return " or ".join(self.memories)

    def stores(
        self, memory: Memory, lookup: Lookup, own: Mapping[str, Datastore] | None = None
    ) -> list[Datastore]:
        """The datastores that a request names.

        Raises:
            RequestError: when there is none of that name, for this visitor.
        """
        known = {**memory.stores, **(own or {})}
        missing = [name for name in lookup.stores if name not in known]
        if missing:
            raise RequestError(
                "There is no such datastore here (any more); choose " + ", ".join(known) + "."
            )
        return [known[name] for name in lookup.stores]

    def settings(self, memory: Memory, lookup: Lookup) -> dict[str, Any]:
        """The settings that a processor takes; those of the first datastore where none is given."""
        gate = memory.gates.get(lookup.stores[0]) if len(lookup.stores) == 1 else None
        return {
            "k": lookup.k,
            "lmbda": NotedGate(gate) if gate is not None and lookup.gate else lookup.lmbda,
            "temperature": lookup.temperature,
            "threads": self.threads,
            "check": False,
        }

    def check_writing(
        self, memory: Memory, wanted: Writing, own: Mapping[str, Datastore] | None = None
    ) -> tuple[Given, list[Datastore]]:
        """Refuses what is not allowed, before anything runs.

        Returns:
            What the model is given, and the datastores.
        """
        given = memory.reading.prompt(wanted.prompt, self.limits, wanted.new_tokens)
        return given, self.stores(memory, wanted.lookup, own) if wanted.lookup else []

    def write(
        self,
        memory: Memory,
        wanted: Writing,
        deadline: Deadline,
        own: Mapping[str, Datastore] | None = None,
    ) -> Iterator[dict[str, Answer]]:
        """Continues a text, or writes to a source; with `compare` both answers grow side by side.

        Args:
            memory: The model.
            wanted: What to write.
            deadline: Ends the writing early; cancelled when nobody reads on.
            own: The visitor's datastores.

        Yields:
            The answers so far, under "lm" and "knn".
        """
        given, stores = self.check_writing(memory, wanted, own)
        sides = ["knn"] if wanted.lookup else ["lm"]
        if wanted.compare:
            sides = ["lm", "knn"]
        news: queue.Queue[tuple[str, Answer | BaseException]] = queue.Queue()
        for side in sides:
            arguments = (memory, wanted, given, stores if side == "knn" else [], deadline)
            threading.Thread(
                target=self._run, args=(side, news, *arguments), name=f"write-{side}", daemon=True
            ).start()
        answers = {side: Answer(given.shown, knn=side == "knn") for side in sides}
        try:
            while not all(answer.done for answer in answers.values()):
                side, what = news.get()
                if isinstance(what, BaseException):
                    raise what
                answers[side] = what
                # What has come meanwhile makes one frame with it.
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
        memory: Memory,
        wanted: Writing,
        given: Given,
        stores: list[Datastore],
        deadline: Deadline,
    ) -> None:
        tokenizer = memory.tokenizer
        reading = memory.reading
        with ExitStack() as stack:
            processors: list[LogitsProcessor] = []
            watched = None
            if stores and wanted.lookup:
                knn = stack.enter_context(
                    KNNLogitsProcessor(memory.model, stores, **self.settings(memory, wanted.lookup))
                )
                watched = Watched(knn)
                processors.append(watched)
            if wanted.sample:
                processors += samplers(wanted.seed, wanted.sampling_temperature, wanted.top_p)
            pieces = Pieces(tokenizer, given.ids[0].tolist())
            words: list[tuple[str, float]] = []
            last = time.monotonic()
            started = last

            def on_token(token: int) -> None:
                nonlocal last
                if token in reading.silent:
                    return
                share = watched.influence(token) if watched else 0.0
                written = any(word for word, _ in words)
                words.append((reading.begins(pieces.add(token), written), share))
                now = time.monotonic()
                if now - last >= _FRAME_SECONDS:
                    last = now
                    tell(Answer(given.shown, tuple(words), knn=bool(watched), tokens=len(words)))

            criteria: list[Any] = [deadline]
            if wanted.one_sentence:
                criteria.append(SentenceEnd(tokenizer, given.ids.shape[1]))
            pad = tokenizer.pad_token_id
            output = memory.model.generate(
                **given.inputs,
                **reading.settings,
                **(generation_settings(stores[0]) if stores else {}),
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
            answer = Answer(
                given.shown, tuple(words), knn=bool(watched), stopped=stopped,
                tokens=len(words), seconds=seconds,
            )  # fmt: skip
            if watched is None or wanted.lookup is None:
                tell(_done(answer))
                return
            # The words are there; the passages take a moment more.
            tell(answer)
            trace = watched.knn.trace(output, tokenizer, max_neighbors=PASSAGES)
            trace = named(trace, stores, wanted.lookup)
            candidates = candidates_of(trace, watched, tokenizer)
            tell(_done(answer, *words_only(trace, candidates, reading.silent)))

    def explain(
        self,
        memory: Memory,
        text: str,
        lookup: Lookup,
        own: Mapping[str, Datastore] | None = None,
        source: str | None = None,
    ) -> Answer:
        """The sources of a text that exists already.

        Args:
            memory: The model.
            text: The text.
            lookup: The datastores and settings.
            own: The visitor's datastores.
            source: What the text was written to, for a model that reads sources.
        """
        reading = memory.reading
        given = reading.whole(text, source, self.limits)
        stores = self.stores(memory, lookup, own)
        settings = self.settings(memory, lookup)
        started = time.monotonic()
        trace = explain(
            memory.model, memory.tokenizer, stores, text, source=source, max_neighbors=PASSAGES,
            **settings,
        )  # fmt: skip
        trace = named(trace, stores, lookup)
        with (
            torch.no_grad(),
            KNNLogitsProcessor(memory.model, stores, record=False, **settings) as knn,
        ):
            watched = Watched(knn)
            logits = memory.model(**given.inputs).logits
            for place in range(1, given.ids.shape[1]):
                watched(given.ids[:, :place], logits[:, place - 1])
        candidates = candidates_of(trace, watched, memory.tokenizer)
        if reading.sources:
            trace, candidates = words_only(trace, candidates, reading.silent)
        words: list[tuple[str, float]] = []
        for token in trace[0].tokens:
            written = any(word for word, _ in words)
            words.append((reading.begins(token.token, written), token.influence))
        return Answer(
            trace[0].prompt,
            tuple(words),
            knn=True,
            done=True,
            trace=trace,
            candidates=candidates,
            tokens=len(words),
            seconds=time.monotonic() - started,
        )


def _done(
    answer: Answer,
    trace: Trace | None = None,
    candidates: tuple[Sequence[Candidate], ...] = (),
) -> Answer:
    return replace(answer, done=True, trace=trace, candidates=candidates)


def friendly(error: BaseException) -> str:
    """One line for a visitor: never a path, never a traceback."""
    if isinstance(error, (RequestError, LimitError)):
        text = " ".join(str(error).split())
    elif isinstance(error, KNNLogitsError):
        text = " ".join(str(error).split())
        if "/" in text or "\\" in text:
            text = f"this does not work ({type(error).__name__}): change the settings or the text"
    else:
        text = "something went wrong on the server; try again with less text"
    # A setting's sign stays as it is: λ is not Λ.
    if text.split(" ", 1)[0] not in SIGNS:
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
