"""`Asking` answers questions: it finds sentences, and quotes one or has the model read passages."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch

from knn_logits.ask.answer import (
    DECLINED,
    NO_ANSWER,
    Answer,
    AnswerToken,
    DocumentEffect,
    PassageEffect,
)
from knn_logits.ask.config import AskConfig
from knn_logits.ask.effects import effects
from knn_logits.ask.messages import Message, courtesy, questions_of, readings_of
from knn_logits.ask.naming import sources_of_words
from knn_logits.ask.prompting import chat_prompt, fitting, reading_of
from knn_logits.ask.ranking import Found, Ranking
from knn_logits.ask.reading import reads
from knn_logits.engine.compatibility import check_tokenizer
from knn_logits.engine.encoder import Encoder, encoder_of
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.pairs import context_length
from knn_logits.engine.passages import Passage, sentence_span
from knn_logits.engine.pieces import token_texts
from knn_logits.engine.tokens import special_ids
from knn_logits.errors import ConfigError
from knn_logits.evidence.sources import words_of
from knn_logits.evidence.token_documents import place_of
from knn_logits.locks import cached_property
from knn_logits.mixture.memory import Memory

logger = logging.getLogger(__name__)

# Number of sentences that are found for a question. Where none answers: the maximum number of
# passages that are shown, and their minimum similarity.
_FOUND_SENTENCES, _NEAR_PASSAGES, _MIN_SIMILARITY = 24, 3, 0.2
# Maximum number of characters of a list or code that is quoted with the sentence before it.
_MAX_COMPLETED = 600


@dataclass(frozen=True)
class _Finding:
    """The sentences found for a question, and whether the first of them answers it."""

    found: list[Found] = field(default_factory=list)
    answers: bool = False


class Asking:
    """Answers questions from the documents of a memory.

        asking = Asking(model, tokenizer, memory)
        asking.answer("When does the office open?").text

    Args:
        model: A causal language model of transformers, best one with a chat template.
        tokenizer: The model's tokenizer.
        memory: A memory of this model. Its `exclude` and weights hold: a datastore of weight 0 and
            excluded documents give no passage.
        config: How questions are answered.

    Raises:
        ConfigError: when the model is an encoder-decoder.
        MismatchError: when the tokenizer is not the datastore's.
    """

    def __init__(
        self, model: Any, tokenizer: Any, memory: Memory, config: AskConfig | None = None
    ) -> None:
        if model.config.is_encoder_decoder:
            raise ConfigError("questions need a causal model, not an encoder-decoder")
        check_tokenizer(tokenizer, memory.stores[0])
        self.model, self.tokenizer, self.memory = model, tokenizer, memory
        self.config = config or AskConfig()

    def answer(
        self,
        question: str,
        history: Sequence[Message] = (),
        streamer: Any = None,
        **settings: Any,
    ) -> Answer:
        """Answers a question. Several questions in one message are answered one by one.

        Args:
            question: The question.
            history: The messages before it, each with a `role` and a `content`.
            streamer: Takes the tokens while the model writes them, as in `generate()`.
            settings: Further arguments of `generate()`, such as `stopping_criteria`.

        Returns:
            The answer with its passages.

        Raises:
            ConfigError: when the question is empty or too long for the model.
        """
        started = time.perf_counter()
        if not question.strip():
            raise ConfigError("the question is empty: enter one")
        reply = courtesy(question, self._encoder)
        if reply is not None:
            return Answer(question, reply, seconds=time.perf_counter() - started)
        asked = questions_of(question, self._encoder)
        parts = [
            self._answered(text, self.find(text, before, history), history, streamer, settings)
            for text, before in asked
        ]
        return replace(_joined(parts), question=question, seconds=time.perf_counter() - started)

    def find(self, question: str, before: str = "", history: Sequence[Message] = ()) -> _Finding:
        """Finds the sentences that fit a question: of its readings the first that is answered."""
        readings = readings_of(question, before, history)
        # Without a word of its own a question is about what was said before.
        if len(readings) > 1 and len(self._ranking.content_words(question)) < 2:
            readings = readings[1:]
        findings: list[_Finding] = []
        for query in readings:
            findings.append(self._found(query))
            if findings[-1].answers:
                return findings[-1]
        return findings[0]

    def _found(self, query: str) -> _Finding:
        found = self._ranking.rank(query, _FOUND_SENTENCES, self._hidden)
        return _Finding(found, self._ranking.answers(found))

    def _answered(
        self,
        question: str,
        finding: _Finding,
        history: Sequence[Message],
        streamer: Any,
        settings: dict[str, Any],
    ) -> Answer:
        if not finding.answers and self.config.outside == "decline":
            return self._declined(question, finding)
        words = self.config.words
        if words == "auto":
            words = "write" if self._reads else "quote"
        if finding.answers and words == "quote":
            best = finding.found[0]
            text = _completed(best.passage.text, best.sentence.text)
            shown = replace(self._shown(best.passage, best.sentence.text), read=True)
            return Answer(question, text, answered=True, quoted=True, passages=[shown])
        return self._written(question, finding, history, streamer, settings)

    def _declined(self, question: str, finding: _Finding) -> Answer:
        near = [
            row
            for row in finding.found
            if row.similarity is None or row.similarity >= _MIN_SIMILARITY
        ]
        passages = self._passages(near, _NEAR_PASSAGES)
        shown = [self._shown(passage, text) for passage, text in passages]
        return Answer(question, NO_ANSWER, passages=shown)

    def _passages(self, found: Sequence[Found], number: int) -> list[tuple[Passage, str]]:
        """The passages of the best sentences, each once, with its best sentence."""
        passages: dict[Passage, str] = {}
        for row in found:
            if len(passages) < number:
                passages.setdefault(row.passage, row.sentence.text)
        return list(passages.items())

    def _written(
        self,
        question: str,
        finding: _Finding,
        history: Sequence[Message],
        streamer: Any,
        settings: dict[str, Any],
    ) -> Answer:
        """The answer that the model writes after the passages, or alone where none answers."""
        rows = self._passages(finding.found, self.config.read) if finding.answers else []
        room = context_length(self.model)
        room = None if room is None else room - self.config.max_new_tokens
        prompt, passages, turns = fitting(
            self.tokenizer, question, [passage for passage, _ in rows], history, room
        )
        written = self._write(prompt, streamer, settings)
        passes = len(written)
        special = special_ids(self.tokenizer)
        written = [token for token in written if token not in special]
        texts = token_texts(self.tokenizer, written)
        text = "".join(texts).strip()
        if passages and (not text or DECLINED in text.lower()):
            declined = self._declined(question, finding)
            return replace(declined, text=text or declined.text, passes=passes)
        shown = [replace(self._shown(*row), read=True) for row in rows[: len(passages)]]
        tokens: list[AnswerToken] = []
        if passages and self.config.evidence:
            tokens, totals = self._measured(question, prompt, passages, turns, written, texts)
            shown = [replace(row, effect=total) for row, total in zip(shown, totals, strict=True)]
            passes += 1 + len(passages)
        return Answer(
            question,
            text,
            answered=bool(passages),
            alone=not passages,
            tokens=tokens,
            passages=shown,
            passes=passes,
        )

    def _measured(
        self,
        question: str,
        prompt: list[int],
        passages: Sequence[Passage],
        turns: Sequence[Message],
        written: list[int],
        texts: list[str],
    ) -> tuple[list[AnswerToken], list[float]]:
        """The tokens of an answer with the effect of each passage, and the passages' effects."""
        readings = [*map(reading_of, passages)]
        without = [
            chat_prompt(self.tokenizer, question, [*readings[:left], *readings[left + 1 :]], turns)
            for left in range(len(passages))
        ]
        with evaluating(self.model):
            log_p, effect = effects(self.model, prompt, without, written)
        documents = [passage.store.documents[passage.document].id for passage in passages]
        tokens = []
        for place, (token, text) in enumerate(zip(written, texts, strict=True)):
            effects_of: dict[str, float] = {}
            for row, document in enumerate(documents):
                effects_of[document] = effects_of.get(document, 0.0) + float(effect[row, place])
            ordered = sorted(effects_of.items(), key=lambda pair: -pair[1])
            parts = [DocumentEffect(document, value) for document, value in ordered]
            tokens.append(AnswerToken(text, token, math.exp(float(log_p[place])), parts))
        groups = words_of(tokens)
        words = ["".join(token.token for token in group) for group in groups]
        read = [passage.text for passage in passages]
        sources = sources_of_words(words, question, read, self._ranking)
        named = [
            replace(token, source=source)
            for group, source in zip(groups, sources, strict=True)
            for token in group
        ]
        return named or tokens, [float(row.sum()) for row in effect]

    @cached_property
    def _reads(self) -> bool:
        with evaluating(self.model):
            return reads(self.model, self.tokenizer)

    @cached_property
    def _encoder(self) -> Encoder | None:
        """The encoder of the datastores' vectors, if all have the same and it is here."""
        stores = self.memory.voting
        records = [store.manifest.encoder for store in stores]
        reason = (
            "the datastore has no vectors of sentences: build it with an encoder for its language"
        )
        if records[0] is not None and records.count(records[0]) == len(records):
            try:
                return encoder_of(records[0])
            except ConfigError as error:
                reason = str(error)
        self.memory.once(
            stores[0],
            "words alone",
            lambda: logger.warning("questions are answered by words alone: %s", reason),
        )
        return None

    @cached_property
    def _ranking(self) -> Ranking:
        """The sentences of all datastores with a share in the vote."""
        stores = self.memory.voting
        names = ("ranking", *(str(store.folder) for store in stores))
        return self.memory.once(
            stores[0], names, lambda: Ranking(self.tokenizer, stores, self._encoder)
        )

    @cached_property
    def _hidden(self) -> list[int]:
        """The rows of documents that are removed or left out."""
        names = self.memory.config.exclude
        hidden = {
            (store, number)
            for store in self.memory.voting
            for numbers in (
                store.manifest.removed,
                *(store.documents.named(name) for name in names),
            )
            for number in numbers
        }
        rows = enumerate(self._ranking.rows if hidden else ())
        return [row for row, (part, _) in rows if (part.store, part.document) in hidden]

    def _write(self, prompt: list[int], streamer: Any, given: dict[str, Any]) -> list[int]:
        """The tokens of an answer."""
        ids = torch.tensor([prompt], device=input_device(self.model))
        pad = self.tokenizer.pad_token_id
        settings: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": self.config.max_new_tokens,
            "do_sample": False,
            "pad_token_id": self.tokenizer.eos_token_id if pad is None else pad,
            "streamer": streamer,
            **given,
        }
        output = self.model.generate(**settings)
        written: list[int] = output[0, ids.shape[1] :].tolist()
        return written

    def _shown(self, passage: Passage, sentence: str) -> PassageEffect:
        record = passage.store.documents[passage.document]
        title, uri = place_of(
            passage.store, passage.first + self._offset(passage, sentence), self.tokenizer
        )
        plain = record.shown.title or record.id
        place = title[len(plain) + 2 :] if title and title.startswith(f"{plain}, ") else None
        return PassageEffect(
            store=self.memory.name_of(passage.store),
            document=record.id,
            title=title or plain,
            uri=uri,
            place=place or next(reversed(passage.headings), None),
            text=passage.text,
            sentence=sentence,
            read=False,
            effect=None,
            span=(passage.first, passage.end),
        )

    def _offset(self, passage: Passage, sentence: str) -> int:
        """The number of a passage's tokens before a sentence of it."""
        ids = passage.store.tokens[passage.first : passage.end].tolist()
        texts = token_texts(self.tokenizer, ids)
        first, _ = sentence_span("".join(texts), sentence) or (0, 0)
        return sum(end <= first for end in accumulate(map(len, texts)))


def _completed(passage: str, sentence: str) -> str:
    """A sentence that ends with a colon, with the list or the code that it introduces."""
    place = sentence_span(passage, sentence) if sentence.endswith(":") else None
    if place is None:
        return sentence
    block = passage[place[1] :].rstrip()
    if len(block) > _MAX_COMPLETED:
        block = block[:_MAX_COMPLETED].rpartition("\n")[0]
    return f"{sentence}{block}" if block.strip() else sentence


def _joined(parts: Sequence[Answer]) -> Answer:
    """The answers to several questions as one."""
    if len(parts) == 1:
        return parts[0]
    answered = [part for part in parts if part.answered] or parts
    texts = [
        part.text if part.answered or part.alone else f"{part.question} {part.text}"
        for part in parts
    ]
    passages = [row for part in answered for row in part.passages]
    return Answer(
        question="",
        text="\n\n".join(texts),
        answered=any(part.answered for part in parts),
        quoted=any(part.quoted for part in parts),
        alone=all(part.alone for part in parts),
        passages=passages,
        passes=sum(part.passes for part in parts),
    )
