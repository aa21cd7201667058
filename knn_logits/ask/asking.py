"""`Asking` answers questions: it finds passages, lets the model read them, and proves the answer."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from knn_logits.ask.answer import NOT_SAID, Answer, AnswerToken, DocumentEffect, PassageEffect
from knn_logits.ask.effects import effects
from knn_logits.ask.naming import sources_of_words
from knn_logits.ask.passages import Passage, passages_of
from knn_logits.ask.prompting import Message, fitting, prompt_ids
from knn_logits.ask.quoting import Sentence, best_sentence, candidates
from knn_logits.ask.ranking import Ranked, Ranking, content_words, refers_back
from knn_logits.engine.compatibility import check_tokenizer
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.pairs import context_length
from knn_logits.engine.pieces import token_texts
from knn_logits.engine.tokens import special_ids, text_ids
from knn_logits.errors import ConfigError
from knn_logits.evidence.passages import place_of
from knn_logits.evidence.sources import words_of
from knn_logits.generation.arguments import arguments_for_drafts
from knn_logits.generation.drafts import DraftedDecoding, Drafter
from knn_logits.mixture.memory import Memory
from knn_logits.settings.declaration import check_fields, setting
from knn_logits.store.datastore import Datastore

_ENDS_SENTENCE = re.compile(r"[.!?。！？][\"'”’)\]]*$")


@dataclass(frozen=True)
class AskConfig:
    """How a question is answered."""

    words: Literal["quote", "write"] = setting(
        "quote",
        "Quote the sentence that answers the question, or let the model read passages and write.",
    )
    passages: int = setting(3, "Passages that are searched for the answer.", least=1, most=64)
    read: int = setting(1, "Passages that the model reads before it writes.", least=1, most=64)
    least_coverage: float = setting(
        0.35,
        "A passage with a smaller share of the question's words, weighted by their idf, is not "
        "about the question.",
        least=0,
        most=1,
    )
    least_shared: float = setting(
        0.5,
        "If the best sentence has a smaller share of the question's words, weighted by their idf, "
        "no document says the answer.",
        least=0,
        most=1,
    )
    max_new_tokens: int = setting(120, "The most tokens that the model writes.", least=1)
    draft: bool = setting(
        True,
        "Verify several tokens of the passages in one forward pass.",
        option="--draft/--no-draft",
    )
    evidence: bool = setting(
        True,
        "Leave out each passage to measure what it did; one forward pass each.",
        option="--evidence/--no-evidence",
    )

    def __post_init__(self) -> None:
        check_fields(self)


class Asking:
    """Answers questions from the documents of a memory.

        asking = Asking(model, tokenizer, memory)
        print(asking.answer("When does the office open?").text)

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
            raise ConfigError("an encoder-decoder model answers no questions: use a causal model")
        check_tokenizer(tokenizer, memory.stores[0])
        self.model, self.tokenizer, self.memory = model, tokenizer, memory
        self.config = config or AskConfig()

    def answer(
        self, question: str, history: Sequence[Message] = (), streamer: Any = None
    ) -> Answer:
        """Answers a question.

        Args:
            question: The question.
            history: The messages before it, each with a `role` and a `content`.
            streamer: Takes the tokens while they are written, as in `generate()`.

        Returns:
            The answer with its passages and their effects.

        Raises:
            ConfigError: when the question is empty or too long for the model.
        """
        started = time.perf_counter()
        if not question.strip():
            raise ConfigError("the question is empty: ask something")
        query = self._query(question, history)
        ranked = self.find(query)
        near = bool(ranked) and ranked[0].coverage >= self.config.least_coverage
        passes, sentence = 0, None
        if near:
            listed = candidates(query, ranked, lambda row, word: self._idf(row.passage, word))
            with evaluating(self.model):
                sentence = best_sentence(self.model, self.tokenizer, query, listed)
            passes += len(listed) > 1
        answered = sentence is not None and self._share(query, sentence) >= self.config.least_shared
        read: list[Ranked] = []
        if answered and sentence is not None:
            read = [sentence.found, *(row for row in ranked if row is not sentence.found)]
            read = read[: 1 if self.config.words == "quote" else self.config.read]
        room = context_length(self.model)
        room = None if room is None else room - self.config.max_new_tokens
        ids, passages, said = fitting(
            self.tokenizer, question, [row.passage for row in read], history, room
        )
        read = read[: len(passages)]
        quoted = answered and self.config.words == "quote"
        if sentence is not None and quoted:
            written = text_ids(self.tokenizer, sentence.text, around=False)
        elif near and not answered:
            written = []
        else:
            written, more = self._write(ids, streamer)
            passes += more
        special = special_ids(self.tokenizer)
        written = [token for token in written if token not in special]
        tokens: list[AnswerToken] = []
        totals: list[float | None] = [None] * len(read)
        if written and self.config.evidence:
            without = [
                prompt_ids(self.tokenizer, question, passages[:left] + passages[left + 1 :], said)
                for left in range(len(passages))
            ]
            with evaluating(self.model):
                log_p, effect = effects(self.model, ids, without, written)
            passes += 1 + len(without)
            tokens = self._tokens(question, written, log_p, effect, passages)
            if quoted:
                tokens = [replace(token, source=0) for token in tokens]
            totals = [float(row.sum()) for row in effect]
        rest = [row for row in ranked if row not in read]
        shown = [*zip(read, totals, strict=True), *((row, None) for row in rest)]
        text = "".join(token_texts(self.tokenizer, written)).strip()
        return Answer(
            question=question,
            text=text if answered or not near else NOT_SAID,
            answered=answered and bool(written),
            near=near,
            quoted=quoted,
            tokens=tokens,
            passages=[self._shown(row, effect) for row, effect in shown],
            passes=passes,
            seconds=time.perf_counter() - started,
        )

    def _share(self, query: str, sentence: Sentence) -> float:
        """The share of a question's words that a sentence has, weighted by idf."""
        words = set(content_words(query))
        total = sum(self._idf(sentence.found.passage, word) for word in words)
        return sentence.shared / total if total else 0.0

    def _idf(self, passage: Passage, word: str) -> float:
        return self._ranking(passage.store).idf(word)

    @staticmethod
    def _query(question: str, history: Sequence[Message]) -> str:
        """A question with the one before it, if it refers back."""
        before = [message["content"] for message in history if message["role"] == "user"]
        return f"{before[-1]} {question}" if before and refers_back(question) else question

    def find(self, query: str) -> list[Ranked]:
        """Finds the passages that fit a question best, the best first."""
        number = self.config.passages
        ranked = [
            row
            for store in self.memory.voting
            for row in self._ranking(store).rank(query, number, self._hidden(store))
        ]
        return sorted(ranked, key=lambda row: -row.score)[:number]

    def _ranking(self, store: Datastore) -> Ranking:
        return self.memory.once(
            store, "passages", lambda: Ranking(passages_of(self.tokenizer, store))
        )

    def _hidden(self, store: Datastore) -> list[int]:
        exclude = self.memory.config.exclude
        if not exclude:
            return []
        numbers = {number for name in exclude for number in store.documents.named(name)}
        passages = self._ranking(store).passages
        return [row for row, passage in enumerate(passages) if passage.document in numbers]

    def _write(self, prompt: list[int], streamer: Any) -> tuple[list[int], int]:
        """The tokens of an answer, and the forward passes that it took."""
        ids = torch.tensor([prompt], device=input_device(self.model))
        pad = self.tokenizer.pad_token_id
        settings: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": self.config.max_new_tokens,
            "do_sample": False,
            "pad_token_id": self.tokenizer.eos_token_id if pad is None else pad,
            "streamer": streamer,
        }
        drafted = arguments_for_drafts(self.model, settings) if self.config.draft else None
        if drafted is None:
            output = self.model.generate(**settings)
            written = output[0, ids.shape[1] :].tolist()
            return written, len(written)
        drafter = Drafter(None)
        loop = DraftedDecoding(lambda text: drafter.draft(text, None), drafter.learn, streamer)
        output = self.model.generate(**drafted, custom_generate=loop)
        return output[0, ids.shape[1] :].tolist(), loop.passes + 1

    def _tokens(
        self,
        question: str,
        written: list[int],
        log_p: torch.Tensor,
        effect: torch.Tensor,
        passages: Sequence[Passage],
    ) -> list[AnswerToken]:
        documents = [passage.store.documents[passage.document].id for passage in passages]
        tokens = []
        for place, (token, text) in enumerate(
            zip(written, token_texts(self.tokenizer, written), strict=True)
        ):
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
        sentence, sentences = 0, []
        for word in words:
            sentences.append(sentence)
            sentence += bool(_ENDS_SENTENCE.search(word.strip()))
        rankings = [self._ranking(store) for store in {p.store for p in passages}]
        sources = sources_of_words(
            words,
            sentences,
            question,
            [passage.text for passage in passages],
            lambda word: max(ranking.idf(word) for ranking in rankings),
        )
        named = [
            replace(token, source=source)
            for group, source in zip(groups, sources, strict=True)
            for token in group
        ]
        return named or tokens

    def _shown(self, found: Ranked, effect: float | None) -> PassageEffect:
        passage = found.passage
        record = passage.store.documents[passage.document]
        title, uri = place_of(passage.store, passage.first, self.tokenizer)
        plain = record.shown.title or record.id
        place = title[len(plain) + 2 :] if title and title.startswith(f"{plain}, ") else None
        return PassageEffect(
            store=self.memory.name_of(passage.store),
            document=record.id,
            title=title or plain,
            uri=uri,
            place=place or passage.heading or None,
            text=passage.text,
            score=found.score,
            effect=effect,
        )
