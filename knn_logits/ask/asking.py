"""`Asking` answers questions: it finds passages, quotes or reads them, and proves the answer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from knn_logits.ask.answer import NOT_SAID, Answer, AnswerToken, DocumentEffect, PassageEffect
from knn_logits.ask.config import AskConfig
from knn_logits.ask.effects import effects
from knn_logits.ask.languages import ENGLISH, language_of
from knn_logits.ask.meanings import Meanings
from knn_logits.ask.naming import sources_of_words
from knn_logits.ask.passages import Passage, passages_of, sentence_span
from knn_logits.ask.prompting import Message, fitting, prompt_ids, reading_of
from knn_logits.ask.quoting import Sentence, best_sentence, candidates, is_near
from knn_logits.ask.ranking import (
    Ranked,
    Ranking,
    asks_whether,
    content_words,
    has_pronoun,
    names_codes,
    with_earlier,
)
from knn_logits.ask.spans import Span
from knn_logits.engine.compatibility import check_tokenizer
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.pairs import context_length
from knn_logits.engine.pieces import token_texts
from knn_logits.engine.tokens import special_ids, text_ids
from knn_logits.errors import ConfigError
from knn_logits.evidence.sources import words_of
from knn_logits.evidence.token_documents import place_of
from knn_logits.generation.arguments import arguments_for_drafts
from knn_logits.generation.drafts import DraftedDecoding, Drafter
from knn_logits.locks import cached_property
from knn_logits.mixture.memory import Memory

# The part that a word of the question before counts in a question that refers back.
_EARLIER = 0.3
# An answer that is likelier for the model than usual, in nats, needs fewer of the question's words.
_SURE, _USUAL = 0.1, -2.0
# So many passages are read to tell whether the documents are about a question, and are shown.
_NEAR = _SHOWN = 3


@dataclass(frozen=True)
class _Choice:
    """Whether a passage is near, whether it answers, its best sentence, and the forward passes."""

    near: bool = False
    answered: bool = False
    sentence: Sentence | None = None
    span: Span | None = None
    passes: int = 0


@dataclass(frozen=True)
class _Wording:
    """The tokens of an answer, and the prompt with the passages that they follow."""

    written: list[int]
    texts: list[str]
    quoted: bool
    prompt: list[int]
    passages: list[Passage]
    turns: Sequence[Message]
    passes: int


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
        """Answers a question.

        Args:
            question: The question.
            history: The messages before it, each with a `role` and a `content`.
            streamer: Takes the tokens while they are written, as in `generate()`.
            settings: Further arguments of `generate()`, such as `stopping_criteria`.

        Returns:
            The answer with its passages and their effects.

        Raises:
            ConfigError: when the question is empty or too long for the model.
        """
        started = time.perf_counter()
        if not question.strip():
            raise ConfigError("the question is empty: enter one")
        query = with_earlier(question, history)
        ranked = self.find(query)
        choice = self._choose(question, query, ranked)
        if choice.sentence is not None:
            source = choice.sentence.source
            ranked = [source, *(row for row in ranked if row is not source)]
        ranked = ranked[: max(_SHOWN, self.config.read)]
        wording = self._word(question, choice, ranked, history, streamer, settings)
        tokens, totals, proofs = self._prove(question, wording)
        quoted, answered = wording.quoted, choice.answered
        sentence = choice.sentence if quoted or not answered else None
        shown = [self._shown(row, sentence) for row in ranked]
        shown[: len(totals)] = [
            replace(row, read=True, effect=effect)
            for row, effect in zip(shown, totals, strict=False)
        ]
        if quoted:  # also from a passage that does not fit into the context
            shown[0] = replace(shown[0], read=True)
        return Answer(
            question=question,
            text=NOT_SAID if choice.near and not answered else "".join(wording.texts).strip(),
            answered=answered and bool(wording.written),
            near=choice.near,
            quoted=quoted,
            tokens=tokens,
            passages=shown,
            sentence=sentence.text if sentence else None,
            span=(choice.span.start, choice.span.end) if quoted and choice.span else None,
            passes=choice.passes + wording.passes + proofs,
            seconds=time.perf_counter() - started,
        )

    def _word(
        self,
        question: str,
        choice: _Choice,
        ranked: Sequence[Ranked],
        history: Sequence[Message],
        streamer: Any,
        settings: dict[str, Any],
    ) -> _Wording:
        """Quotes the sentence or its span, or lets the model write after the passages it reads."""
        words, answered, passes = self.config.words, choice.answered, 0
        written: list[int] = []
        quoted = answered and choice.sentence is not None and words != "write"
        if choice.sentence is not None and quoted:
            quotation = choice.sentence.text
            if choice.span is not None and words == "span":
                quotation = choice.span.within(quotation)
            written = text_ids(self.tokenizer, quotation, around=False)
        most = (self.config.read if words == "write" else 1) if answered else 0
        room = context_length(self.model)
        room = None if room is None else room - (len(written) or self.config.max_new_tokens)
        prompt, passages, turns = fitting(
            self.tokenizer, question, [row.passage for row in ranked[:most]], history, room
        )
        if not quoted and (answered or not choice.near):
            written, passes = self._write(prompt, streamer, settings)
        special = special_ids(self.tokenizer)
        written = [token for token in written if token not in special]
        texts = token_texts(self.tokenizer, written)
        return _Wording(written, texts, quoted, prompt, passages, turns, passes)

    def _prove(
        self, question: str, wording: _Wording
    ) -> tuple[list[AnswerToken], list[float | None], int]:
        """The tokens with their effects, the effect of each passage, and the forward passes."""
        passages = wording.passages
        if not wording.written or not self.config.evidence:
            return [], [None] * len(passages), 0
        without = [
            prompt_ids(
                self.tokenizer, question, [*passages[:left], *passages[left + 1 :]], wording.turns
            )
            for left in range(len(passages))
        ]
        with evaluating(self.model):
            log_p, effect = effects(self.model, wording.prompt, without, wording.written)
        tokens = self._tokens(question, wording.written, wording.texts, log_p, effect, passages)
        if wording.quoted:
            tokens = [replace(token, source=0) for token in tokens]
        return tokens, [float(row.sum()) for row in effect], 1 + len(passages)

    def _choose(self, question: str, query: str, ranked: Sequence[Ranked]) -> _Choice:
        """Chooses the sentence to quote, and whether it answers."""
        ranking, language = self._ranking(query), language_of(query)
        # Every general question has words that are like some of the documents'.
        plain = ranking.rank(query, _NEAR, self._hidden)
        if not plain:
            return _Choice()
        words, idf, alike = set(content_words(query, language)), ranking.idf, ranking.alike(query)
        listed = candidates(query, ranked, idf, alike)
        share = self._share(listed, ranking.weight(query))
        shown = candidates(query, plain, idf), [reading_of(row.passage) for row in plain]
        model, tokenizer, least = self.model, self.tokenizer, self.config.least_gain
        with evaluating(model):
            near, scored, passes = is_near(model, tokenizer, query, *shown, least)
            if not near:
                return _Choice(passes=passes)
            if query != question:
                scored = {}
                # It is about what the question before is about, and asks for something else.
                last = set(content_words(question, language)) or words
                weights = {word: idf(word) * (1 if word in last else _EARLIER) for word in words}
                listed = candidates(query, ranked, weights.__getitem__, alike)
                latest = self._share(listed, sum(weights.values()))
                share = max(share, latest) if has_pronoun(question) else latest
            sentence, span, further = best_sentence(model, tokenizer, question, listed, scored)
        sure = _SURE * (span.score - _USUAL) if span and not asks_whether(question) else 0.0
        # A question without a word of its own is answered by nothing.
        may = bool(words) and names_codes(question, ranked[:_NEAR])
        may = may and self._match(query, ranked, share) >= self.config.least_match
        answered = may and max(0.0, share + sure) >= self.config.least_shared
        return _Choice(True, answered, sentence, span, passes + further)

    def find(self, query: str) -> list[Ranked]:
        """Finds the passages that fit a question best, the best first."""
        ranking, most = self._ranking(query), self.config.passages
        return ranking.rank(query, most, self._hidden, alike=ranking.alike(query))

    def shared(self, query: str) -> float:
        """The largest share of a query's words, weighed by idf, that a sentence has, in [0, 1].

        It takes no pass of the model. With `config.least_shared` a document may say the answer.
        """
        ranking = self._ranking(query)
        listed = candidates(query, self.find(query), ranking.idf, ranking.alike(query))
        return min(1.0, self._share(listed, ranking.weight(query)))

    def match(self, query: str) -> float:
        """That share and the best passage's BM25 score per idf of the query's words, in [0, 2].

        It takes no pass of the model. `config.least_match` is the least that an answer needs.
        """
        ranked = self.find(query)
        return self._match(query, ranked, self.shared(query))

    def _match(self, query: str, ranked: Sequence[Ranked], share: float) -> float:
        total = self._ranking(query).weight(query)
        return min(1.0, share) + min(1.0, ranked[0].score / total if ranked and total else 0.0)

    @staticmethod
    def _share(listed: Sequence[Sentence], total: float) -> float:
        """What the first of a query's candidates has of its words, and of the sentence before."""
        return listed[0].shared / total if listed and total else 0.0

    def _ranking(self, query: str = "") -> Ranking:
        """The passages of all datastores with a share in the vote, by words of a query's language.

        Without a query they are in English.
        """
        stores, language = self.memory.voting, language_of(query)
        passages = None if language == ENGLISH else self._ranking().passages

        def ranking() -> Ranking:
            rows = (row for store in stores for row in passages_of(self.tokenizer, store))
            meanings = partial(Meanings, self.model, self.tokenizer, language)
            return Ranking(passages or [*rows], language, meanings)

        names = ("ranking", language, *(str(store.folder) for store in stores))
        return self.memory.once(stores[0], names, ranking)

    @cached_property
    def _hidden(self) -> list[int]:
        """The rows of documents that are left out."""
        names = self.memory.config.exclude
        hidden = {
            (store, number)
            for store in self.memory.voting
            for name in names
            for number in store.documents.named(name)
        }
        rows = enumerate(self._ranking().passages if hidden else ())
        return [row for row, passage in rows if (passage.store, passage.document) in hidden]

    def _write(
        self, prompt: list[int], streamer: Any, given: dict[str, Any]
    ) -> tuple[list[int], int]:
        """The tokens of an answer, and the forward passes that it took."""
        ids = torch.tensor([prompt], device=input_device(self.model))
        pad = self.tokenizer.pad_token_id
        settings: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": self.config.max_new_tokens,
            "do_sample": self.config.sample,
            "pad_token_id": self.tokenizer.eos_token_id if pad is None else pad,
            "streamer": streamer,
            **given,
        }
        drafted = arguments_for_drafts(self.model, settings) if self.config.draft else None
        if drafted is None:
            output = self.model.generate(**settings)
            written = output[0, ids.shape[1] :].tolist()
            return written, len(written)
        drafter = Drafter(None)
        loop = DraftedDecoding(
            lambda text, room: drafter.draft(text, None, room), drafter.learn, streamer
        )
        output = self.model.generate(**drafted, custom_generate=loop)
        return output[0, ids.shape[1] :].tolist(), loop.passes + 1

    def _tokens(
        self,
        question: str,
        written: list[int],
        texts: list[str],
        log_p: torch.Tensor,
        effect: torch.Tensor,
        passages: Sequence[Passage],
    ) -> list[AnswerToken]:
        documents = [passage.store.documents[passage.document].id for passage in passages]
        tokens = []
        for place, (token, text) in enumerate(zip(written, texts, strict=True)):
            effects_of: dict[str, float] = {}
            for row, document in enumerate(documents):
                effects_of[document] = effects_of.get(document, 0.0) + float(effect[row, place])
            ordered = sorted(effects_of.items(), key=lambda pair: -pair[1])
            tokens.append(
                AnswerToken(
                    text,
                    token,
                    math.exp(float(log_p[place])),
                    [DocumentEffect(document, value) for document, value in ordered],
                )
            )
        return self._named(question, tokens, passages)

    def _named(
        self, question: str, tokens: list[AnswerToken], passages: Sequence[Passage]
    ) -> list[AnswerToken]:
        groups = words_of(tokens) if passages else []
        words = ["".join(token.token for token in group) for group in groups]
        texts = [passage.text for passage in passages]
        sources = sources_of_words(words, question, texts, self._ranking().idf)
        named = [
            replace(token, source=source)
            for group, source in zip(groups, sources, strict=True)
            for token in group
        ]
        return named or tokens

    def _shown(self, row: Ranked, sentence: Sentence | None) -> PassageEffect:
        passage = row.passage
        record = passage.store.documents[passage.document]
        inside = sentence.text if sentence is not None and sentence.source is row else ""
        first = passage.first + self._offset(passage, inside)
        title, uri = place_of(passage.store, first, self.tokenizer)
        plain = record.shown.title or record.id
        place = title[len(plain) + 2 :] if title and title.startswith(f"{plain}, ") else None
        return PassageEffect(
            store=self.memory.name_of(passage.store),
            document=record.id,
            title=title or plain,
            uri=uri,
            place=place or passage.heading or None,
            text=passage.text,
            score=row.score,
            read=False,
            effect=None,
            span=(passage.first, passage.end),
        )

    def _offset(self, passage: Passage, sentence: str) -> int:
        """The number of a passage's tokens before a sentence of it; 0 if it has none."""
        if not sentence:
            return 0
        ids = passage.store.tokens[passage.first : passage.end].tolist()
        texts = token_texts(self.tokenizer, ids)
        span = sentence_span("".join(texts), sentence)
        return sum(end <= span[0] for end in accumulate(map(len, texts))) if span else 0
