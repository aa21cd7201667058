"""The language of a text by its commonest words, and the stems of its words."""

from __future__ import annotations

import importlib
import re
import sys
import unicodedata
from functools import cache
from types import ModuleType

import Stemmer


def _import_bm25s() -> ModuleType:
    """Imports bm25s without JAX, which would reserve most of a GPU's memory to sort scores."""
    jax = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("bm25s.stopwords")
    finally:
        del sys.modules["jax"]
        if jax is not None:
            sys.modules["jax"] = jax
    return sys.modules["bm25s"]


bm25s = _import_bm25s()
# bm25s has lists of these, and Snowball stems them. English is what is left.
_LANGUAGES = (
    "danish", "dutch", "french", "german", "italian", "norwegian", "portuguese", "spanish",
    "swedish",
)  # fmt: skip
ENGLISH = "english"
# Words of questions that the lists leave out: who, when, why, how much, and what may be.
_ASKING = {
    "dutch": "hoeveel waarom wanneer wie welke hoe moet mag",
    "french": "combien comment où pourquoi quand quel quelle quelles quels quoi doit faut peut",
    "german": "wann warum weshalb wen wem wer wessen wieso wieviel viel viele darf dürfen muss "
    "müssen gibt",
    "italian": "chi come cosa dove perché quale quali quando quanto quanti quante deve può",
    "portuguese": "como onde porque quais qual quando quanto quantos quantas quem deve pode",
    "spanish": "cómo cuál cuáles cuándo cuánto cuánta cuántos cuántas dónde qué quién quiénes debe "
    "puede",
}
_WORD = re.compile(r"[^\W\d_]+")


def folded(text: str) -> str:
    """A text in small letters without accents."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(sign for sign in plain if not unicodedata.combining(sign))


@cache
def common_words(language: str) -> frozenset[str]:
    """The folded words of a language that say nothing of what a text is about."""
    if language == ENGLISH:
        return frozenset(bm25s.stopwords.STOPWORDS_EN_PLUS)
    listed = getattr(bm25s.stopwords, f"STOPWORDS_{language.upper()}", ())
    return frozenset(map(folded, (*listed, *_ASKING.get(language, "").split())))


def language_of(text: str) -> str:
    """The language whose common words a text has most; English unless another has more."""
    words = _WORD.findall(folded(text))
    return max(
        (ENGLISH, *_LANGUAGES),
        key=lambda language: sum(word in common_words(language) for word in words),
    )


@cache
def _stemmer(language: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(language)


def stem(word: str, language: str = ENGLISH) -> str:
    """A folded word without its ending."""
    stemmed: str = _stemmer(language).stemWord(word)
    return stemmed
