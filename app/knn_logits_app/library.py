"""A `Library` is a model with its datastores. It does not know of visitors or pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from knn_logits import ConfigError, Datastore, Memory, use_fastest_dtype
from knn_logits_app.reading import Reading

_T = TypeVar("_T")

# The most characters of a source that is used as an example.
_LONG = 160
# Tokens of a document that are searched for a sentence, and the fewest words of the sentence.
_LOOKED_AT, _WORDS = 1500, 9
# The most words of a paragraph that is shown as an example.
_SHOWN = 60
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
# A sentence that has only letters, digits and the punctuation of prose.
_PROSE = re.compile(r"[^\W\d_][^\W\d_]*[ ,](?:[^\W_]|[ ,;'’\"“”()\-–])+[.!?]")


@dataclass(frozen=True)
class Example:
    """A prompt or a source to try, and the datastores that know about it."""

    prompt: str
    stores: tuple[str, ...]


@dataclass
class Library:
    """A model, its tokenizer and its datastores.

    Attributes:
        name: The name of the model on the page.
        model: A causal or encoder-decoder model of transformers, in evaluation mode.
        tokenizer: The tokenizer of the model.
        stores: The datastores by name. The model built each of them.
        gates: Gates by the names of their datastores. A gate chooses λ until a visitor moves the
            slider.
        examples: Prompts that the page offers.
        about: One sentence for the top of the page.
        sample_text: A text to measure. It is similar to the datastores' texts, but not in them.
        one_sentence: Whether an answer ends with its first sentence by default.
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
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        opened: dict[str, Datastore] = {}
        for store in stores:
            title, number = store.name, 2
            while title in opened:
                title, number = f"{store.name} {number}", number + 1
            opened[title] = store
        if not opened:
            raise ConfigError("no datastore was given: name at least one")
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

        opened = [Datastore.from_pretrained(one) for one in datastores]
        pairs = AutoConfig.from_pretrained(model).is_encoder_decoder
        family: Any = AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM
        loaded = family.from_pretrained(model, dtype="auto").eval()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        tokenizer = AutoTokenizer.from_pretrained(model)
        loaded = loaded.to(device)
        use_fastest_dtype(loaded)
        return cls.of(model.rstrip("/").split("/")[-1], loaded, tokenizer, opened)

    @property
    def memory(self) -> Memory:
        """The model with all its datastores. It searches in one thread.

        `of` has checked the datastores already.
        """
        stores = list(self.stores.values())
        return self._once("memory", lambda: Memory(self.model, stores, threads=1, check=False))

    @property
    def reading(self) -> Reading:
        """Turns texts into inputs of the model, within limits."""
        return self._once(
            "reading", lambda: Reading(self.model, self.tokenizer, self.stores, self.context)
        )

    def _once(self, name: str, make: Callable[[], _T]) -> _T:
        """Returns what was made before, without a lock, which a fork might find closed forever."""
        if name not in self._made:
            self._made[name] = make()
        found: _T = self._made[name]
        return found

    @property
    def context(self) -> int | None:
        """The most tokens that the model reads; None if its configuration does not say.

        For an encoder-decoder model this is the limit of the decoder.
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
    """Returns beginnings of sentences as prompts for a datastore that has none.

    If the documents are targets of pairs, their sources are returned instead.

    Args:
        store: The datastore.
        tokenizer: The tokenizer of the datastore.
        number: The most prompts.
        words: The number of words of a prompt.
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
    """Returns a sentence of prose, but no header, table or code; None if there is none.

    The first sentence is taken only if there is no other.
    """
    sentences = [
        " ".join(one.split()) for part in _PARAGRAPH.split(text) for one in _SENTENCE.split(part)
    ]
    fitting = [one for one in sentences if _PROSE.fullmatch(one) and len(one.split()) >= _WORDS]
    # First sentences often name their document, and many of them begin alike.
    return next(iter(fitting[1:] or fitting), None)


def passage(store: Datastore, tokenizer: Any) -> str | None:
    """Returns a paragraph of prose, up to `_SHOWN` words; None if there is none.

    Args:
        store: The datastore.
        tokenizer: The tokenizer of the datastore.
    """
    for place in range(0, len(store.documents), max(1, len(store.documents) // 8)):
        document = store.documents[place]
        ids = store.tokens[document.first : document.first + min(document.length, _LOOKED_AT)]
        # The last paragraph may be cut.
        text = str(tokenizer.decode(ids.tolist(), skip_special_tokens=True))
        paragraphs = _PARAGRAPH.split(text)
        for paragraph in paragraphs[:-1] if document.length > _LOOKED_AT else paragraphs:
            sentences = [" ".join(one.split()) for one in _SENTENCE.split(paragraph.strip())]
            if len(sentences) < 2 or not all(_PROSE.fullmatch(one) for one in sentences):
                continue
            shown = sentences[:1]
            for one in sentences[1:]:
                if len(" ".join([*shown, one]).split()) > _SHOWN:
                    break
                shown.append(one)
            return " ".join(shown)
    return None


def first_words(store: Datastore, tokenizer: Any, number: int = 4) -> list[str]:
    """Returns beginnings of the sentences of a short text, of any kind.

    A beginning has half of the sentence's words, and at most six.

    Args:
        store: The datastore.
        tokenizer: The tokenizer of the datastore.
        number: The most beginnings.
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
