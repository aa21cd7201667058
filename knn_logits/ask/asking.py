"""`Asking` answers questions: it finds sentences, and quotes one or has the model read passages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from knn_logits.ask.answer import DECLINED, NO_ANSWER, Answer, AnswerToken, PassageEffect
from knn_logits.ask.effects import sources_of_words
from knn_logits.ask.messages import (
    Message,
    chat_prompt,
    courtesy,
    fitting,
    questions_of,
    reading_of,
    readings_of,
)
from knn_logits.ask.ranking import Found, Ranking
from knn_logits.ask.reading import reads, write
from knn_logits.engine.compatibility import check_tokenizer
from knn_logits.engine.encoder import Encoder, encoder_of
from knn_logits.engine.forward import evaluating, log_prob
from knn_logits.engine.pairs import context_length
from knn_logits.engine.passages import Passage, sentence_span
from knn_logits.engine.pieces import token_texts
from knn_logits.engine.tokens import special_ids
from knn_logits.errors import ConfigError
from knn_logits.evidence.sources import words_of
from knn_logits.evidence.token_documents import place_of
from knn_logits.locks import cached_property
from knn_logits.mixture.memory import Memory
from knn_logits.settings.config import AskConfig

logger = logging.getLogger(__name__)

# Sentences that are found; passages that are shown where none answers, and their similarity.
_FOUND_SENTENCES, _NEAR_PASSAGES, _MIN_SIMILARITY = 24, 3, 0.1
# An answer whose margin is less is shown with a caution and alternatives.
_CLEAR_MARGIN = 0.15


class Asking:
    """Answers questions from the documents of a memory.

        asking = Asking(model, tokenizer, memory)
        asking.answer("When does the office open?").text

    Args:
        model: A causal language model of transformers, best one with a chat template.
        tokenizer: The model's tokenizer.
        memory: A memory of this model. Its `exclude` holds: excluded documents give no passage.
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
        self, question: str, history: Sequence[Message] = (), streamer: Any = None, **settings: Any
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
        if not question.strip():
            raise ConfigError("the question is empty: enter one")
        reply = courtesy(question, self._encoder)
        if reply is not None:
            return Answer(question, reply)
        settings["streamer"] = streamer
        parts, said = list[Answer](), [*history]
        for text, before in questions_of(question, self._encoder):
            parts.append(self._answered(text, self.find(text, before, said), said, settings))
            said += [{"role": "user", "content": text}]
            said += [{"role": "assistant", "content": parts[-1].text}]
        return replace(_joined(parts), question=question)

    def find(self, question: str, before: str = "", history: Sequence[Message] = ()) -> list[Found]:
        """Finds the sentences that fit a question, by the reading of it that they fit best."""
        # "Why?" again is about the question before it.
        asked = [turn for turn in history if self._ranking.content_words(turn["content"])]
        readings, rank = readings_of(question, before, asked), self._ranking.rank
        rows = [rank(query, _FOUND_SENTENCES, self._hidden, after) for query, after in readings]
        best = max(rows, key=self._ranking.margin)
        # Without a word of its own a question is about what was said before.
        own = self._ranking.content_words(question)
        return best if self._ranking.margin(best) >= 0 else rows[0 if own else -1]

    def _answered(
        self,
        question: str,
        found: list[Found],
        history: Sequence[Message],
        settings: dict[str, Any],
    ) -> Answer:
        # A question without a word of its own, such as "Why?", is about the last reply.
        alone = bool(history) and not self._ranking.content_words(question)
        again = alone and bool(found) and found[0].sentence.text in history[-1]["content"]
        margin = self._ranking.margin(found)
        answers = again or margin >= 0
        if not answers and self.config.outside == "decline":
            return self._declined(question, found)
        words = self.config.words
        if answers and (words == "quote" or (words == "auto" and not self._reads)):
            best = found[0]
            text = best.passage.text if again else best.passage.completed(best.sentence, best.quote)
            caution = "around" if again else "doubtful" if margin < _CLEAR_MARGIN else None
            others = self._near(found) if caution == "doubtful" else []
            first, *near = map(self._shown, self._passages([best, *others], _NEAR_PASSAGES))
            shown = [replace(first, read=True), *near]
            return Answer(question, text, True, quoted=True, caution=caution, passages=shown)
        return self._written(question, found if answers else [], history, settings)

    def _declined(self, question: str, found: Sequence[Found]) -> Answer:
        return Answer(question, NO_ANSWER, passages=[*map(self._shown, self._near(found))])

    def _near(self, found: Sequence[Found]) -> list[Found]:
        near = [row for row in found if row.similarity is None or row.similarity >= _MIN_SIMILARITY]
        return self._passages(near, _NEAR_PASSAGES)

    def _passages(self, found: Sequence[Found], number: int) -> list[Found]:
        """The best sentences, one of each passage."""
        passages: dict[Passage, Found] = {}
        for row in found:
            passages.setdefault(row.passage, row)
        return list(passages.values())[:number]

    def _written(
        self,
        question: str,
        found: list[Found],
        history: Sequence[Message],
        settings: dict[str, Any],
    ) -> Answer:
        """The answer that the model writes after the passages, or alone where none answers."""
        rows = self._passages(found, self.config.read)
        room, most = context_length(self.model), self.config.max_new_tokens
        room = None if room is None else room - most
        prompt, passages, turns = fitting(
            self.tokenizer, question, [row.passage for row in rows], history, room
        )
        special = special_ids(self.tokenizer)
        written = write(self.model, self.tokenizer, prompt, most, **settings)
        written = [token for token in written if token not in special]
        texts = token_texts(self.tokenizer, written)
        text = "".join(texts).strip()
        if passages and (not text or DECLINED in text.lower()):
            return self._declined(question, found)
        if not passages:
            return Answer(question, text, alone=True)
        changes = self._effects(question, prompt, passages, turns, written)
        shown = [
            replace(self._shown(row), read=True, effect=change)
            for row, change in zip(rows, changes, strict=False)
        ]
        tokens = [AnswerToken(*pair) for pair in zip(texts, written, strict=True)]
        named = self._named(question, tokens, passages)
        return Answer(question, text, answered=True, tokens=named, passages=shown)

    def _effects(
        self,
        question: str,
        prompt: list[int],
        passages: Sequence[Passage],
        turns: Sequence[Message],
        written: list[int],
    ) -> list[float]:
        """The effect of each passage on an answer: it is left out of the prompt."""
        readings = [*map(reading_of, passages)]
        others = [readings[:left] + readings[left + 1 :] for left in range(len(readings))]
        without = [chat_prompt(self.tokenizer, question, rest, turns) for rest in others]
        with evaluating(self.model):
            whole = log_prob(self.model, prompt, written)
            return [whole - log_prob(self.model, ids, written) for ids in without]

    def _named(
        self, question: str, tokens: list[AnswerToken], passages: Sequence[Passage]
    ) -> list[AnswerToken]:
        """The tokens of an answer, each with the passage that has its word."""
        groups = words_of(tokens)
        words = ["".join(token.token for token in group) for group in groups]
        read = [passage.text for passage in passages]
        sources = sources_of_words(words, question, read, self._ranking)
        named = [
            replace(token, source=source)
            for group, source in zip(groups, sources, strict=True)
            for token in group
        ]
        return named or tokens

    @cached_property
    def _reads(self) -> bool:
        with evaluating(self.model):
            return reads(self.model, self.tokenizer)

    @cached_property
    def _encoder(self) -> Encoder | None:
        """The encoder of the datastores' vectors, if all have the same and it is here."""
        stores = self.memory.stores
        records = [store.manifest.encoder for store in stores]
        reason = "no sentence is encoded: build the datastore with an encoder for its language"
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
        stores = self.memory.stores
        names = ("ranking", *(str(store.folder) for store in stores))
        return self.memory.once(
            stores[0], names, lambda: Ranking(self.tokenizer, stores, self._encoder)
        )

    @cached_property
    def _hidden(self) -> list[int]:
        """The rows of documents that are removed or left out."""
        names = self.memory.config.exclude
        hidden = {
            (store, number) for store in self.memory.stores for number in store.left_out(names)
        }
        rows = enumerate(self._ranking.rows if hidden else ())
        return [row for row, (part, _) in rows if (part.store, part.document) in hidden]

    def _shown(self, found: Found) -> PassageEffect:
        passage = found.passage
        record = passage.store.documents[passage.document]
        first = passage.first + self._offset(passage, found.quote)
        title, uri = place_of(passage.store, first, self.tokenizer)
        return PassageEffect(
            store=self.memory.name_of(passage.store),
            document=record.id,
            title=title or record.shown.title or record.id,
            uri=uri,
            heading=next(reversed(passage.headings), None),
            text=passage.text,
            sentence=found.sentence.shown(found.quote),
            place=sentence_span(passage.text, found.quote),
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


def _as_part(answer: Answer) -> str:
    """One of several answers: its text, after the question where that is not clearly answered."""
    text = f"“{answer.text}”" if answer.quoted else answer.text
    if answer.caution:
        return f"{answer.question} {answer.note} {text}"
    return text if answer.answered or answer.alone else f"{answer.question} {text}"


def _joined(parts: Sequence[Answer]) -> Answer:
    """The answers to several questions as one."""
    if len(parts) == 1:
        return parts[0]
    answered = [part for part in parts if part.answered] or parts
    return Answer(
        question="",
        text="\n\n".join(map(_as_part, parts)),
        answered=any(part.answered for part in parts),
        quoted=any(part.quoted for part in parts),
        alone=all(part.alone for part in parts),
        passages=[row for one in answered for row in one.passages if row.read or not one.answered],
    )
