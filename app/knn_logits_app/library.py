"""A `Library` is a model with its datastores, and the sample texts that the page fills in."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from knn_logits import Datastore, KNNLogitsError, Memory
from knn_logits.errors import ConfigError
from knn_logits.hosting import context_length, heading_name
from knn_logits_app.decoding import Reader
from knn_logits_app.requests import MOST_STORES

logger = logging.getLogger("knn_logits.app")
# Seconds until a changed datastore that cannot be opened is tried again.
_RETRY_SECONDS = 10.0
# Tokens of a document that are searched for a sentence, and the fewest blanks in the sentence.
_SEARCHED, _BLANKS = 1500, 8
# Maximum number of documents to search for headings, and the form of a heading to ask about.
_DOCUMENTS, _TOPIC = 64, re.compile(r"[^\W\d_]\S*( \S+){2,}")
_SENTENCE = re.compile(r"\n\s*\n|(?<=[.!?])\s+")
# A sentence that has only letters, digits and the punctuation of prose.
_PROSE = re.compile(r"[^\W\d_][^\W\d_]*[ ,](?:[^\W_]|[ ,;'’\"“”()\-–])+[.!?]")


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
        model: A causal model of transformers, in evaluation mode.
        tokenizer: The tokenizer of the model.
        stores: The datastores by name. The model built each of them.
        memory: The model with all its datastores. It searches in one thread.
        examples: Prompts that the page offers.
        questions: Questions that the chat offers.
    """

    name: str
    model: Any
    tokenizer: Any
    stores: Mapping[str, Datastore]
    memory: Memory
    examples: tuple[str, ...] = ()
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
            ConfigError: when there is no datastore, or an encoder-decoder model.
        """
        listed = list(stores)
        if not listed:
            raise ConfigError("no datastore given: pass at least one")
        if getattr(model.config, "is_encoder_decoder", False):
            raise ConfigError(
                "the page continues texts, and this is an encoder-decoder model: use `knn-logits "
                "generate`"
            )
        memory = Memory(model, listed, threads=1)
        opened = dict(zip(memory.names, memory.stores, strict=True))
        examples = tuple(prompts) or tuple(
            " ".join(sentence.split()[:6])
            for store in opened.values()
            for sentence in sentences(store, tokenizer, 4 // len(opened) or 1)
        )
        library = cls(name, model, tokenizer, opened, memory, examples)
        if library.chats:
            library.questions = questions(library.store, tokenizer, 3)
        return library

    @property
    def store(self) -> Datastore:
        """The first datastore, whose settings hold at first."""
        return next(iter(self.stores.values()))

    @property
    def chosen(self) -> list[str]:
        """The datastores that the page chooses at first."""
        return list(self.stores)[:MOST_STORES]

    @cached_property
    def reader(self) -> Reader:
        """Turns texts into inputs of the model, within limits."""
        return Reader(self.model, self.tokenizer)

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template, so that questions come first."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def context(self) -> int | None:
        """The most tokens that the model reads; None if its configuration does not say."""
        return context_length(self.model)

    def sample_passage(self) -> str:
        """Returns a sentence of the first datastore."""
        return next(iter(sentences(self.store, self.tokenizer, 1)), "")


def questions(store: Datastore, tokenizer: Any, number: int) -> tuple[str, ...]:
    """Returns questions about headings below the title, of as many documents as possible."""
    found, documents = list[str](), min(len(store.documents), _DOCUMENTS)
    for record in (store.documents[place] for place in range(documents)):
        tokens = store.tokens[record.first : record.first + record.length]
        parts = (tokens[one.start : one.end] for one in record.blocks if one.kind in ("h2", "h3"))
        names = (heading_name(tokenizer.decode(part.tolist())) for part in parts)
        found += islice(filter(_TOPIC.fullmatch, names), max(1, number // documents))
    asked = (name if name.endswith("?") else f"What does it say about “{name}”?" for name in found)
    return tuple(islice(asked, number))


def sentences(store: Datastore, tokenizer: Any, number: int) -> list[str]:
    """Returns sentences of prose, each of another document."""
    found: list[str] = []
    documents = len(store.documents)
    for place in range(0, documents, max(1, documents // (4 * number))):
        document = store.documents[place]
        ids = store.tokens[document.first : document.first + min(document.length, _SEARCHED)]
        text = str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))
        parts = [" ".join(part.split()) for part in _SENTENCE.split(text)]
        parts = [part for part in parts if _PROSE.fullmatch(part) and part.count(" ") >= _BLANKS]
        # The first sentence of a document is often no part of its text.
        found += (parts[1:] or parts)[:1]
        if len(found) == number:
            break
    return found
