"""The language of a text by its commonest words, and the words of a text for BM25."""

from __future__ import annotations

import importlib
import re
import sys
import unicodedata
from functools import cache
from types import ModuleType

import Stemmer


@cache
def bm25s() -> ModuleType:
    """Imports bm25s without JAX, which would reserve most of a GPU's memory to sort scores.

    It imports llvmlite where numba is installed, after which vLLM does not start on a CPU.
    """
    jax = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("bm25s.stopwords")
    finally:
        del sys.modules["jax"]
        if jax is not None:
            sys.modules["jax"] = jax
    return sys.modules["bm25s"]


# bm25s has lists of common words in these languages, and Snowball stems them.
_LANGUAGES = {
    "english": "en", "danish": "da", "dutch": "nl", "french": "fr", "german": "de",
    "italian": "it", "norwegian": "nb", "portuguese": "pt", "spanish": "es", "swedish": "sv",
}  # fmt: skip
# The first letter of another script and its language, for the borders of sentences.
_SCRIPTS = (
    ("\u3040", "\u30ff", "ja"), ("\u4e00", "\u9fff", "zh"), ("\uac00", "\ud7af", "ko"),
    ("\u0e00", "\u0e7f", "th"), ("\u0900", "\u097f", "hi"), ("\u0600", "\u06ff", "ar"),
    ("\u0400", "\u04ff", "ru"), ("\u0370", "\u03ff", "el"),
)  # fmt: skip
# Scripts without blanks between words, of which pairs of characters are words; and the letters of
# others, whose vowel signs `\w` does not match.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}_])[\w\u0900-\u0dff])+")
_SIGNS = re.compile(r"[\u0300-\u036f]")


def folded(text: str) -> str:
    """A text in small letters without accents."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFC", _SIGNS.sub("", plain))


@cache
def common_words(language: str) -> frozenset[str]:
    """The folded words of a language that say nothing of what a text is about."""
    name = next((name for name, code in _LANGUAGES.items() if code == language), "").upper()
    name = f"STOPWORDS_{'EN_PLUS' if language == 'en' else name}"
    listed = getattr(bm25s().stopwords, name, ())
    return frozenset(map(folded, listed))


def language_of(text: str) -> str:
    """The ISO 639 code of a text's language: by its script, or by its common words."""
    for first, last, code in _SCRIPTS:
        if sum(first <= letter <= last for letter in text) > len(text) / 8:
            return code
    words = _WORD.findall(folded(text))
    return max(
        _LANGUAGES.values(),
        key=lambda language: sum(word in common_words(language) for word in words),
    )


@cache
def _stemmer(language: str) -> Stemmer.Stemmer | None:
    name = next((name for name, code in _LANGUAGES.items() if code == language), None)
    return Stemmer.Stemmer(name) if name else None


def words_of(text: str, language: str, *, common: bool = True) -> list[str]:
    """The words of a text, folded and stemmed; pairs of characters where no blank parts words.

    Without `common` the words that say nothing of what a text is about are left out.
    """
    stemmer, words = _stemmer(language), []
    left_out = frozenset() if common else common_words(language)
    for word in _WORD.findall(folded(text)):
        if re.match(f"[{_UNSPACED}]", word):
            words += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        elif word not in left_out:
            words.append(stemmer.stemWord(word) if stemmer else word)
    return words
