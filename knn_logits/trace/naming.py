"""Tells whether a passage names what a prompt names, and which names no passage has.

A question may ask in other words for what the documents say. The states within such a prompt find
few hits then, although the answer comes from the right passage. Two witnesses tell that from a
passage that has nothing to do with the prompt: the answer's first word is near, and the passage
has a word of the prompt that few passages have, such as a name or a number (LOG.md).

The reverse can be said for certain. A question about K-4224 finds a passage about another part,
and the answer may read well. That "K-4224" stands in no document is then the better news.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from knn_logits.arrays import Array
from knn_logits.datastore.store import Datastore
from knn_logits.text.pieces import decoded
from knn_logits.text.tokens import special_ids

# A name may hold signs, as K-4224 and 3.5 do.
_WORD = re.compile(r"\w(?:[\w'’./:-]*\w)?")
# A passage has so many tokens on either side of its entry.
_AROUND = 64
# A word is common if more than this share of a sample of passages has it.
_COMMON, _SAMPLE = 0.02, 512

# A longer prompt is a text, of which nobody expects that a corpus has each name.
_LONGEST_QUESTION, _LONGEST_NAME = 40, 64
# Where a code has its hyphen, if it has one: K-4224.
_CODE = re.compile(r"(?<=[^\W\d_])[ -]?(?=\d)")
# What may stand before a word.
_BEFORE = (" ", "(", "\n")
# How signs may surround it in a text.
_JOINED = (
    *('"{}', "'{}", "({}", "/{}", "-{}", ".{}", '"{}"', '"{}".', "'{}'", "({})", "({}).", "/{}/"),
    *(" {}’s", " {}'s", " {}.", " {},", " {};", " {}:", " {}?", " {}!", " {}/", " {}-", " {}\n"),
)
# A search for a word reads all tokens, in a millisecond a million.
_MOST_TOKENS = 50_000_000
_ENDS_SENTENCE = re.compile(r"(?:^|[.!?:\n])[^\w.!?:\n]*$")

_common_words: WeakKeyDictionary[Datastore, frozenset[str]] = WeakKeyDictionary()


def names_alike(tokenizer: Any, prompt: str, store: Datastore, entry: int) -> bool:
    """Whether a passage has a word of a prompt that few passages of the datastore have.

    Args:
        tokenizer: The datastore's tokenizer.
        prompt: The text that was given.
        store: The datastore.
        entry: The entry in the middle of the passage.
    """
    passage = store.passage(entry, before=_AROUND, after=_AROUND)
    named = _words_of(tokenizer, [*passage.before, passage.token, *passage.after])
    shared = _words(prompt) & (named | _words(passage.document.title or ""))
    return bool(shared) and bool(shared - common_words(tokenizer, store))


def common_words(tokenizer: Any, store: Datastore) -> frozenset[str]:
    """Returns the words that more than 2% of a datastore's passages have, in small letters.

    They are counted in 512 passages from all over the datastore, once for each open datastore.
    """
    if store not in _common_words:
        length = len(store.tokens)
        first = np.linspace(0, max(0, length - _AROUND), min(_SAMPLE, 1 + length // _AROUND))
        counts: Counter[str] = Counter()
        for begin in first.astype(np.int64).tolist():
            tokens = np.asarray(store.tokens[begin : begin + _AROUND]).tolist()
            counts.update(_words_of(tokenizer, tokens))
        least = _COMMON * len(first)
        _common_words[store] = frozenset(word for word, n in counts.items() if n > max(least, 1))
    return _common_words[store]


def unknown_names(tokenizer: Any, prompt: str, stores: Iterable[Datastore]) -> tuple[str, ...]:
    """Returns the names in a prompt that stand nowhere in some datastores, in their order.

    A word counts as a name if it has a digit, or a capital that does not begin a sentence. Capitals
    and hyphens of codes do not matter for the search. What a longer word contains was found, so
    that too little is said rather than too much. Nothing is said about a prompt of more than 40
    words, about a name of more than 64 characters, or about a datastore that has no text or more
    than 50 million tokens.

    Args:
        tokenizer: The datastores' tokenizer.
        prompt: The text that was given.
        stores: The datastores.
    """
    stores = list(stores)
    names = _names(prompt)
    # A learned memory has no text to look at.
    if any(one.manifest.learned or len(one.tokens) > _MOST_TOKENS for one in stores):
        return ()
    return tuple(
        name for name in names if not any(_stands_in(tokenizer, name, store) for store in stores)
    )


def _names(prompt: str) -> list[str]:
    words = list(_WORD.finditer(prompt))
    if len(words) > _LONGEST_QUESTION:
        return []
    names = []
    for found in words:
        name = re.split("['’]", found[0])[0]
        capital = name[:1].isupper() and not prompt.isupper()
        begins = _ENDS_SENTENCE.search(prompt[: found.start()]) is not None
        if 1 < len(name) <= _LONGEST_NAME and (
            any(map(str.isdigit, name)) or (capital and not begins)
        ):
            names.append(name)
    return list(dict.fromkeys(names))


def _stands_in(tokenizer: Any, name: str, store: Datastore) -> bool:
    ways = [before + one for one in _spellings(name) for before in ("", *_BEFORE)]
    encoded = tokenizer([*_BEFORE, *ways], add_special_tokens=False)["input_ids"]
    before, found = encoded[: len(_BEFORE)], {tuple(one) for one in encoded[len(_BEFORE) :]}
    # A tokenizer may have another first token for a word that no space precedes.
    found |= {
        ids[len(one) :] for ids in found for one in before if one and ids[: len(one)] == tuple(one)
    }
    # A tokenizer that joins words and signs may have joined them in the corpus as well.
    joined = [one.format(name) for one in _JOINED]
    for ids in tokenizer(joined, add_special_tokens=False)["input_ids"]:
        if not any(_occurs(one, np.array(ids)) for one in found):
            return True
    tokens = np.asarray(store.tokens)
    if any(_occurs(ids, tokens) for ids in found):
        return True
    return bool(store.documents.search(name))


def _spellings(name: str) -> set[str]:
    """How documents may write a name: in capitals, and a code with a hyphen or space or without."""
    codes = {_CODE.sub(between, name) for between in ("", "-", " ")} | {name}
    return {way for one in codes for way in (one, one.lower(), one.upper(), one.capitalize())}


def _occurs(ids: tuple[int, ...], tokens: Array) -> bool:
    """Whether some tokens follow one another somewhere."""
    if not ids:
        return True
    places = np.flatnonzero(tokens[: max(0, len(tokens) - len(ids) + 1)] == ids[0])
    for offset, one in enumerate(ids[1:], 1):
        places = places[tokens[places + offset] == one]
    return bool(len(places))


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _words_of(tokenizer: Any, tokens: list[int]) -> set[str]:
    special = special_ids(tokenizer)
    return _words(decoded(tokenizer, [token for token in tokens if token not in special]))
