"""A model and the datastores that it can look into. Nothing here knows of visitors or pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from knn_logits import ConfigError, Datastore, Memory
from knn_logits_app.reading import Reading

# Characters of a source that still makes an example.
_LONG = 160
# Tokens of a document in which a sentence is looked for, and its fewest words.
_LOOKED_AT, _WORDS = 1500, 9
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
# Letters, and what stands between the words of a sentence.
_PROSE = re.compile(r"[^\W\d_][^\W\d_]*[ ,](?:[^\W_]|[ ,;'’\"“”()\-–])+[.!?]")


@dataclass(frozen=True)
class Example:
    """A prompt or a source worth trying, and the datastores it is about."""

    prompt: str
    stores: tuple[str, ...]


@dataclass
class Library:
    """A model, its tokenizer and its datastores.

    Attributes:
        name: What people call the model.
        model: A causal or encoder-decoder model of transformers, in evaluation mode.
        tokenizer: Its tokenizer.
        stores: The datastores by name; each was built by the model.
        gates: What decides the weight of the neighbors, by datastore, where a visitor leaves the
            slider alone: a gate of `knn_logits` in place of a number.
        examples: Prompts to begin with.
        about: One sentence for the top of the page.
        sample_text: A text like those of the datastores that they do not hold, to measure.
        one_sentence: Whether an answer ends with its first sentence unless a visitor wants more.
    """

    name: str
    model: Any
    tokenizer: Any
    stores: Mapping[str, Datastore]
    gates: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    about: str = ""
    one_sentence: bool = False
    sample_text: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        model: Any,
        tokenizer: Any,
        stores: Iterable[Datastore],
        prompts: Sequence[str] = (),
    ) -> Library:
        """A library of any model and datastores, which are checked once, here.

        Args:
            name: What people call the model.
            model: The model.
            tokenizer: Its tokenizer.
            stores: Its datastores.
            prompts: Examples to begin with; none takes sentences of the datastores.

        Raises:
            MismatchError: when a datastore belongs to another model.
            ConfigError: when there is no datastore.
        """
        opened: dict[str, Datastore] = {}
        for store in stores:
            title, number = store.name, 2
            while title in opened:
                title, number = f"{store.name} {number}", number + 1
            opened[title] = store
        if not opened:
            raise ConfigError("name at least one datastore")
        Memory(model, list(opened.values()), threads=1)
        examples = tuple(
            Example(prompt, (title,))
            for title, store in opened.items()
            for prompt in beginnings(store, tokenizer, 4 // len(opened) or 1)
        )
        if prompts:
            examples = tuple(Example(one, (next(iter(opened)),)) for one in prompts)
        return cls(name, model, tokenizer, opened, examples=examples)

    @classmethod
    def open(cls, model: str, datastores: Iterable[str]) -> Library:
        """A library of what is named: names on the Hub, or folders.

        Args:
            model: Of a causal or encoder-decoder model of transformers.
            datastores: Of datastores that it built.

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

        opened = [Datastore.from_pretrained(one) for one in datastores]
        pairs = AutoConfig.from_pretrained(model).is_encoder_decoder
        family: Any = AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM
        loaded = family.from_pretrained(model, dtype="auto").eval()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        tokenizer = AutoTokenizer.from_pretrained(model)
        return cls.of(model.rstrip("/").split("/")[-1], loaded.to(device), tokenizer, opened)

    @cached_property
    def memory(self) -> Memory:
        """The model with all its datastores, which were checked before. Searches in one thread."""
        return Memory(self.model, list(self.stores.values()), threads=1, check=False)

    @cached_property
    def reading(self) -> Reading:
        """How the model takes a text."""
        return Reading(self.model, self.tokenizer, self.stores, self.context)

    @property
    def context(self) -> int | None:
        """Tokens that the model reads at most, None where it does not say.

        Of an encoder-decoder model those of its decoder.
        """
        for attribute in ("max_position_embeddings", "n_positions", "n_ctx"):
            found = getattr(self.model.config, attribute, None)
            if isinstance(found, int) and found > 0:
                return found
        return None

    @property
    def weights(self) -> int:
        """Number of the model's weights."""
        return sum(one.numel() for one in self.model.parameters())


def beginnings(store: Datastore, tokenizer: Any, number: int, words: int = 6) -> list[str]:
    """How some sentences of the documents begin, as prompts for a datastore without any.

    Where the documents are the targets of pairs: some of their sources.
    """
    found: list[str] = []
    documents = store.documents
    for place in range(0, len(documents), max(1, len(documents) // (number * 4))):
        document = documents[place]
        if document.source is not None:
            found += [document.source] if len(document.source) <= _LONG else []
        else:
            ids = store.tokens[document.first : document.first + _LOOKED_AT]
            text = str(tokenizer.decode(ids[: document.length].tolist(), skip_special_tokens=True))
            sentence = prose(text)
            found += [" ".join(sentence.split()[:words])] if sentence else []
        if len(found) == number:
            break
    return list(dict.fromkeys(found)) or first_words(store, tokenizer, number)


def prose(text: str) -> str | None:
    """A sentence of running text: no header, no table, no code; not the document's first one."""
    sentences = [
        " ".join(one.split()) for part in _PARAGRAPH.split(text) for one in _SENTENCE.split(part)
    ]
    fitting = [one for one in sentences if _PROSE.fullmatch(one) and len(one.split()) >= _WORDS]
    # The first sentence of a document often names it, and many begin alike.
    return next(iter(fitting[1:] or fitting), None)


def first_words(store: Datastore, tokenizer: Any, number: int = 4) -> list[str]:
    """How sentences of a short text begin, each by half of its words; no sentence is too plain.

    Args:
        store: A datastore.
        tokenizer: Its tokenizer.
        number: Beginnings, at most.
    """
    found: list[str] = []
    for place in range(min(len(store.documents), 20)):
        document = store.documents[place]
        ids = store.tokens[document.first : document.first + min(document.length, _LOOKED_AT)]
        text = str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))
        sentences = [one.split() for one in _SENTENCE.split(text)]
        found += [" ".join(one[: min(6, (len(one) + 1) // 2)]) for one in sentences if len(one) > 3]
    step = max(1, len(found) // number)
    return list(dict.fromkeys(found[::step]))[:number]
