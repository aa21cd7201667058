"""Tells whether a passage names what a prompt names.

A question may ask in other words for what the documents say. The states within such a prompt find
few hits then, although the answer comes from the right passage. Two witnesses tell that from a
passage that has nothing to do with the prompt: the answer's first word is near, and the passage
has a word of the prompt that few passages have, such as a name or a number (LOG.md).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from knn_logits.datastore.store import Datastore
from knn_logits.text.pieces import decoded
from knn_logits.text.tokens import special_ids

# A name may hold signs, as K-4224 and 3.5 do.
_WORD = re.compile(r"\w(?:[\w'’./:-]*\w)?")
# A passage has so many tokens on either side of its entry.
_AROUND = 64
# A word is common if more than this share of a sample of passages has it.
_COMMON, _SAMPLE = 0.02, 512

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


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _words_of(tokenizer: Any, tokens: list[int]) -> set[str]:
    special = special_ids(tokenizer)
    return _words(decoded(tokenizer, [token for token in tokens if token not in special]))
