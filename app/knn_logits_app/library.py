"""A `Library` is a model with its datastores, and the sample texts that the page fills in."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from knn_logits import ConfigError, Datastore, KNNLogitsError, Memory, use_fastest_dtype
from knn_logits_app.decoding import Reader, context_of
from knn_logits_app.padding import pad_rows
from knn_logits_app.requests import MOST_STORES

logger = logging.getLogger("knn_logits.app")
# A changed datastore that cannot be opened is tried again after so many seconds.
_RETRY_SECONDS = 10.0
# The most characters of a source that is used as an example.
_LONG = 160
# Tokens of a document that are searched for a sentence, and the fewest words of the sentence.
_SEARCHED, _WORDS = 1500, 9
# The documents and questions that a chat without a turn names for each datastore.
_NAMED, _QUESTIONS = 3, 3
# The most words of a paragraph that is shown as an example.
_SHOWN = 60
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
# A question in a text: a line or sentence of at least four words, with the signs of prose alone.
_QUESTION = re.compile(
    r"(?:^|(?<=[.!?:\n]))[^\S\n]*([^\W\d_a-z][\w’'-]*(?: [\w’'-]+,?){3,20}\?)(?!\S)", re.MULTILINE
)
# A question that only the text before it explains is no example.
_REFERS = re.compile(r"\b(?:it|they|this|that|these|those)\b", re.IGNORECASE)
# A sentence that has only letters, digits and the punctuation of prose.
_PROSE = re.compile(r"[^\W\d_][^\W\d_]*[ ,](?:[^\W_]|[ ,;'’\"“”()\-–])+[.!?]")


@dataclass(frozen=True)
class Example:
    """A prompt or a source to try, and the datastores that know about it."""

    prompt: str
    stores: tuple[str, ...]


class Reopening:
    """Opens datastores again whose folders a job of this package has changed."""

    def __init__(self) -> None:
        self._lock, self._next = threading.Lock(), 0.0

    def __call__(
        self, model: Any, stores: Mapping[str, Datastore], **settings: Any
    ) -> tuple[dict[str, Datastore], Memory] | None:
        """Returns the datastores and their memory; None if nothing has changed."""
        with self._lock:
            changed = {name for name, store in stores.items() if not store.is_current}
            if not changed or time.monotonic() < self._next:
                return None
            try:
                opened = {
                    name: Datastore(store.folder) if name in changed else store
                    for name, store in stores.items()
                }
                return opened, Memory(model, opened, threads=1, **settings)
            except KNNLogitsError as error:
                self._next = time.monotonic() + _RETRY_SECONDS
                names = ", ".join(sorted(changed))
                logger.warning("the changed datastore %s was not opened again: %s", names, error)
                return None


@dataclass
class Library:
    """A model, its tokenizer and its datastores.

    Attributes:
        name: The name of the model on the page.
        model: A causal or encoder-decoder model of transformers, in evaluation mode.
        tokenizer: The tokenizer of the model.
        stores: The datastores by name. The model built each of them.
        examples: Prompts that the page offers.
        about: One sentence for the top of the page.
        questions: Questions that the chat offers about the first datastore. Without any, it offers
            those that the documents ask themselves.
    """

    name: str
    model: Any
    tokenizer: Any
    stores: Mapping[str, Datastore]
    examples: tuple[Example, ...] = ()
    about: str = ""
    questions: tuple[str, ...] = ()
    _reopening: Reopening = field(default_factory=Reopening, repr=False)

    def refresh(self) -> None:
        """Opens datastores again whose folders have changed."""
        reopened = self._reopening(self.model, self.stores)
        if reopened is not None:
            self.stores, self.memory = reopened

    @classmethod
    def of(
        cls,
        name: str,
        model: Any,
        tokenizer: Any,
        stores: Iterable[Datastore],
        prompts: Sequence[str] = (),
    ) -> Library:
        """Makes a library of a model and datastores, after checking that they belong together.

        Args:
            name: The name of the model on the page.
            model: The model.
            tokenizer: The tokenizer of the model.
            stores: The datastores.
            prompts: Examples of prompts. Without any, sentences of the datastores are used.

        Raises:
            MismatchError: when a datastore belongs to another model.
            ConfigError: when there is no datastore.
        """
        opened = by_name(stores, " ")
        if not opened:
            raise ConfigError("no datastore given: pass at least one")
        Memory(model, opened, threads=1)
        pad_rows(model)
        examples = [
            Example(prompt, (title,))
            for title, store in opened.items()
            for prompt in beginnings(store, tokenizer, 4 // len(opened) or 1)
        ]
        if prompts:
            examples = [Example(prompt, (next(iter(opened)),)) for prompt in prompts]
        questions = tuple(prompt for prompt in prompts if prompt.endswith("?"))
        return cls(name, model, tokenizer, opened, examples=tuple(examples), questions=questions)

    @classmethod
    def open(cls, model: str, datastores: Iterable[str]) -> Library:
        """Opens a library from names on the Hub or folders.

        Args:
            model: The name or folder of a causal or encoder-decoder model of transformers.
            datastores: The names or folders of datastores that the model built.

        Raises:
            KNNLogitsError: when a datastore cannot be opened, or belongs to another model.
            OSError: when there is no such model.
        """
        import torch
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForSeq2SeqLM,
            AutoTokenizer,
        )

        opened = [Datastore.from_pretrained(name) for name in datastores]
        pairs = AutoConfig.from_pretrained(model).is_encoder_decoder
        family: Any = AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM
        loaded = family.from_pretrained(model, dtype="auto").eval()
        loaded = loaded.to("cuda" if torch.cuda.is_available() else "cpu")
        use_fastest_dtype(loaded)
        tokenizer = AutoTokenizer.from_pretrained(model)
        return cls.of(model.rstrip("/").split("/")[-1], loaded, tokenizer, opened)

    @property
    def store(self) -> Datastore:
        """The first datastore, whose settings hold at first."""
        return next(iter(self.stores.values()))

    @property
    def chosen(self) -> list[str]:
        """The datastores that the page chooses at first."""
        return list(self.stores)[:MOST_STORES]

    @cached_property
    def memory(self) -> Memory:
        """The model with all its datastores, which `of` has checked. It searches in one thread."""
        return Memory(self.model, self.stores, threads=1, check=False)

    @cached_property
    def reader(self) -> Reader:
        """Turns texts into inputs of the model, within limits."""
        return Reader(self.model, self.tokenizer, self.store, self.context)

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template, so that questions come first."""
        return bool(getattr(self.tokenizer, "chat_template", None)) and not self.reader.sources

    @property
    def context(self) -> int | None:
        """The most tokens that the model reads; None if its configuration does not say."""
        return context_of(self.model)

    @property
    def weights(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def first_source(self) -> str:
        """Returns the source of the first document; empty if it has none."""
        source = self.store.documents[0].source if len(self.store.documents) else None
        return " ".join((source or "").split())

    def sample_passage(self) -> str:
        """Returns a sample text of the first datastore: a paragraph of prose if there is one."""
        prose = None if self.reader.sources else passage(self.store, self.tokenizer)
        if prose or not len(self.store.documents):
            return prose or ""
        return _text(self.store, self.tokenizer, 0, 80).strip()


def by_name(stores: Iterable[Datastore], sign: str) -> dict[str, Datastore]:
    """Names datastores; of those with the same name the second ends with 2, and so on."""
    stores_by_name: dict[str, Datastore] = {}
    for store in stores:
        name, number = store.name, 2
        while name in stores_by_name:
            name, number = f"{store.name}{sign}{number}", number + 1
        stores_by_name[name] = store
    return stores_by_name


def beginnings(store: Datastore, tokenizer: Any, number: int) -> list[str]:
    """Returns beginnings of sentences, or sources of pairs, as prompts."""
    prompts: list[str] = []
    for place in _spread(store, number * 4):
        source = store.documents[place].source
        if source is not None:
            prompts += [source] if len(source) <= _LONG else []
        else:
            sentence = prose(_text(store, tokenizer, place))
            prompts += [" ".join(sentence.split()[:6])] if sentence else []
        if len(prompts) == number:
            break
    return list(dict.fromkeys(prompts)) or first_words(store, tokenizer, number)


def titles(store: Datastore, number: int) -> list[str]:
    """Returns the titles of the first documents, or their ids."""
    records = (store.documents[place].shown for place in range(len(store.documents))[:number])
    return [record.title or record.id for record in records]


def opening(library: Library, store: Datastore) -> dict[str, Any]:
    """What a chat without a turn says about a datastore."""
    return {
        "documents": titles(store, _NAMED),
        "number": len(store.documents),
        "questions": questions_about(library, store, _QUESTIONS),
    }


def questions_about(library: Library, store: Datastore, number: int) -> list[str]:
    """Returns questions about a datastore: the given ones, or what its documents ask themselves."""
    questions = list(library.questions) if store is library.store else []
    for place in _spread(store, 8) if not questions else ():
        matches = _QUESTION.findall(_text(store, library.tokenizer, place))
        questions += [question for question in matches if not _REFERS.search(question)]
        if len(questions) >= number:
            break
    return list(dict.fromkeys(questions))[:number]


def prose(text: str) -> str | None:
    """Returns a sentence of prose, and the first one only if there is no other; else None."""
    sentences = [sentence for part in _PARAGRAPH.split(text) for sentence in _sentences(part)]
    fitting = [text for text in sentences if _PROSE.fullmatch(text) and len(text.split()) >= _WORDS]
    return next(iter(fitting[1:] or fitting), None)


def passage(store: Datastore, tokenizer: Any) -> str | None:
    """Returns a paragraph of prose, up to `_SHOWN` words; None if there is none."""
    for place in _spread(store, 8):
        paragraphs = _PARAGRAPH.split(_text(store, tokenizer, place))
        # The last paragraph may be cut.
        cut = store.documents[place].length > _SEARCHED
        for paragraph in paragraphs[:-1] if cut else paragraphs:
            sentences = list(_sentences(paragraph.strip()))
            if len(sentences) < 2 or not all(map(_PROSE.fullmatch, sentences)):
                continue
            shown = sentences[0]
            for sentence in sentences[1:]:
                if len(shown.split()) + len(sentence.split()) > _SHOWN:
                    break
                shown += f" {sentence}"
            return shown
    return None


def first_words(store: Datastore, tokenizer: Any, number: int = 4) -> list[str]:
    """Returns beginnings of a short text's sentences: half of the words, and at most six."""
    prompts: list[str] = []
    for place in range(min(len(store.documents), 20)):
        sentences = [part.split() for part in _sentences(_text(store, tokenizer, place))]
        prompts += [
            " ".join(words[: min(6, (len(words) + 1) // 2)])
            for words in sentences
            if len(words) > 3
        ]
    step = max(1, len(prompts) // number)
    return list(dict.fromkeys(prompts[::step]))[:number]


def _spread(store: Datastore, number: int) -> range:
    """Numbers of documents, evenly spaced."""
    documents = len(store.documents)
    return range(0, documents, max(1, documents // number))


def _sentences(text: str) -> Iterator[str]:
    return (" ".join(sentence.split()) for sentence in _SENTENCE.split(text))


def _text(store: Datastore, tokenizer: Any, place: int, tokens: int = _SEARCHED) -> str:
    """Returns the beginning of a document."""
    document = store.documents[place]
    ids = store.tokens[document.first : document.first + min(document.length, tokens)]
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))
