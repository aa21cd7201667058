"""Tells whether a passage has a rare word of a prompt, and which names no passage has."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from knn_logits.engine.pieces import decoded
from knn_logits.engine.tokens import special_ids
from knn_logits.store.datastore import Datastore

# A name may hold signs, as K-4224 and 3.5 do.
_WORD = re.compile(r"\w(?:[\w'’./:-]*\w)?")
# A passage has so many tokens on either side of its entry.
_AROUND = 64
# A word is common if more than this share of a sample of passages has it.
_COMMON, _SAMPLE = 0.02, 512

# A longer prompt is a text, of which nobody expects that a corpus has each name.
_LONGEST_QUESTION, _LONGEST_NAME = 40, 64
# The text of a datastore is read once, in a third of a second a million tokens.
_MOST_TOKENS = 2_000_000
_ENDS_SENTENCE = re.compile(r"(?:^|[.!?:\n])[^\w.!?:\n]*$")

# A short word that stands in a tenth of the sampled documents, and in three, names none of them.
_SHORT, _WIDESPREAD, _FEWEST = 4, 0.1, 3

_common_words: WeakKeyDictionary[Datastore, frozenset[str]] = WeakKeyDictionary()
_short_words: WeakKeyDictionary[Datastore, frozenset[str]] = WeakKeyDictionary()
_letters: WeakKeyDictionary[Datastore, _Letters] = WeakKeyDictionary()


def names_alike(tokenizer: Any, prompt: str, store: Datastore, entry: int) -> bool:
    """Whether a passage has a word of a prompt that few passages of the datastore have."""
    passage = store.passage(entry, before=_AROUND, after=_AROUND)
    words = _words_of(tokenizer, [*passage.before, passage.token, *passage.after])
    shared = _words(prompt) & (words | _words(passage.document.title or ""))
    return bool(shared) and bool(shared - common_words(tokenizer, store))


def common_words(tokenizer: Any, store: Datastore) -> frozenset[str]:
    """The words that more than 2% of a datastore's passages have, in small letters."""
    if store not in _common_words:
        _sample(tokenizer, store)
    return _common_words[store]


def widespread_words(tokenizer: Any, text: str, stores: Iterable[Datastore]) -> tuple[str, ...]:
    """The short words of a text that stand in many documents, in small letters."""
    words = {
        word for word in _words(text) if len(word) <= _SHORT and (word.isalpha() or len(word) == 1)
    }
    for store in stores if words else ():
        if store not in _short_words:
            _sample(tokenizer, store)
    return tuple(
        sorted(word for word in words if any(word in _short_words[store] for store in stores))
    )


def _sample(tokenizer: Any, store: Datastore) -> None:
    """Counts words in a sample of a datastore's passages. A learned memory has no passages."""
    length = 0 if store.manifest.learned else len(store.tokens)
    first = np.linspace(0, max(0, length - _AROUND), min(_SAMPLE, 1 + length // _AROUND))
    counts: Counter[str] = Counter()
    documents: dict[str, set[int]] = {}
    for begin in first.astype(np.int64).tolist() if length else ():
        words = _words_of(tokenizer, np.asarray(store.tokens[begin : begin + _AROUND]).tolist())
        counts.update(words)
        for word in words:
            documents.setdefault(word, set()).add(store.documents.at_token(begin))
    least = max(_COMMON * len(first), 1)
    _common_words[store] = frozenset(word for word, number in counts.items() if number > least)
    every = set().union(*documents.values())
    least_documents = max(_WIDESPREAD * len(every), _FEWEST)
    _short_words[store] = frozenset(
        word
        for word, where in documents.items()
        if len(word) <= _SHORT and len(where) >= least_documents
    )


def unknown_names(
    tokenizer: Any, prompt: str, stores: Iterable[Datastore], exclude: Collection[str] = ()
) -> tuple[str, ...]:
    """The names in a prompt that stand nowhere in some datastores, in their order."""
    stores = list(stores)
    # A learned memory has no text to look at.
    readable = [
        0 < len(store.tokens) <= _MOST_TOKENS and not store.manifest.learned for store in stores
    ]
    if not stores or not all(readable):
        return ()
    hidden = [
        {*gone, *(number for name in exclude for number in store.documents.named(name, gone))}
        for store, gone in ((store, store.manifest.removed) for store in stores)
    ]
    return tuple(
        name
        for name in _names(prompt)
        if not any(map(partial(_stands_in, tokenizer, name), stores, hidden))
    )


def _names(prompt: str) -> list[str]:
    words = list(_WORD.finditer(prompt))
    if len(words) > _LONGEST_QUESTION:
        return []
    names = []
    for match in words:
        name = re.split("['’]", match[0])[0]
        capital = name[:1].isupper() and not prompt.isupper()
        begins = _ENDS_SENTENCE.search(prompt[: match.start()]) is not None
        if 1 < len(name) <= _LONGEST_NAME and (
            any(map(str.isdigit, name)) or (capital and not begins)
        ):
            names.append(name)
    return list(dict.fromkeys(names))


class _Letters:
    """The letters and digits of a datastore's documents, to be compared with names."""

    def __init__(self, tokenizer: Any, store: Datastore) -> None:
        tokens, special = np.asarray(store.tokens), special_ids(tokenizer)
        # Nothing that is compared contains the sign between two documents.
        parts, ends, end = [], [], 0
        for first, length in zip(store.documents.first, store.documents.length, strict=True):
            ids = [
                token for token in tokens[first : first + length].tolist() if token not in special
            ]
            parts.append(_compared(decoded(tokenizer, ids)))
            end += len(parts[-1]) + 1
            ends.append(end)
        self._text, self._ends = "\n".join(parts), ends

    def documents_with(self, letters: str) -> Iterator[int]:
        """Yields the numbers of the documents that contain some letters, ascending."""
        place = self._text.find(letters)
        while place >= 0:
            number = bisect_right(self._ends, place)
            yield number
            place = self._text.find(letters, self._ends[number])


def _stands_in(tokenizer: Any, name: str, store: Datastore, hidden: Container[int]) -> bool:
    """Whether a name stands in a document that is not hidden, or in what such a one is called."""
    if store not in _letters:
        _letters[store] = _Letters(tokenizer, store)
    letters = _compared(name)
    numbers = chain(_letters[store].documents_with(letters), store.documents.search(name))
    return not letters or any(number not in hidden for number in numbers)


def _compared(text: str) -> str:
    """The letters and digits of a text, without case and accents."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(filter(str.isalnum, plain))


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _words_of(tokenizer: Any, tokens: list[int]) -> set[str]:
    special = special_ids(tokenizer)
    return _words(decoded(tokenizer, [token for token in tokens if token not in special]))
