"""Cuts stored documents in passages and their sentences, and finds languages and words for BM25."""

from __future__ import annotations

import importlib
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import Stemmer

from knn_logits.engine.pieces import decoded
from knn_logits.engine.tokens import control_ids
from knn_logits.store.blocks import HEADINGS, TokenBlock, unlinked, with_names
from knn_logits.store.datastore import Datastore

# Number of tokens to which a passage grows block by block. A longer block is a passage of its own,
# and is cut at the ends of sentences beyond the second number.
PASSAGE_TOKENS, MAX_TOKENS = 160, 320
# A longer sentence is cut between two words, a longer block of code between two lines. A shorter
# list or code is quoted with the sentence that introduces it.
MAX_CHARACTERS, _MAX_INTRODUCED = 800, 600
_LABEL_CHARACTERS = 40
QUESTION_MARKS = ("?", "\uff1f", "\u061f")
_SENTENCE_CUT = re.compile(rf"(?s)(.{{1,{MAX_CHARACTERS}}})(?:\s+|$)|(.{{{MAX_CHARACTERS}}})")
# sentencex takes the square of a text's length, so that a longer block is cut between two words.
_BLOCK_CUT = re.compile(r"(?s)(.{1,10000})(?: |$)|(.{10000})")
_CODE_CUT = re.compile(rf"(?s)(.{{1,{MAX_CHARACTERS}}})(?:\n|$)|(.{{{MAX_CHARACTERS}}})")
_MARKER = re.compile(r"\s*(?:[-*+•▪◦●–>]|\(?\d{1,3}[.)]|[a-z]\)|[QA]:)\s+")
_CLOSING = re.compile(r"\s#+$")
_ENDS = re.compile("[.!?\u3002\uff01\uff1f\u0964\n]" + r"[\"'”’)\]]*\s*$")
_LANGUAGE_CHARACTERS = 4000


@dataclass(frozen=True)
class Sentence:
    """A sentence, a list item, a table row or a piece of code."""

    text: str  # in one line, code excepted, without the marker of a list
    # Text to read with it: its table's header, its list's introduction, or a question before it
    lead: str = ""
    before: str = ""  # the sentence before it in its paragraph, if it has no lead
    named: str = ""  # the cells of a table row with the names of their columns

    @property
    def whole(self) -> str:
        """The text after its lead, or with the names of columns."""
        return self.named or (f"{self.lead} {self.text}" if self.lead else self.text)

    def shown(self, quote: str) -> str:
        """A quote of it, of a table's row with the names of the columns."""
        if quote.startswith("- "):  # a row of a file of records, which names them
            return quote.removeprefix("- ")
        return self.named or quote


@dataclass(frozen=True, eq=False)
class Passage:
    """A section of a document, or a part of it, that is read and shown as a whole."""

    store: Datastore
    document: int  # its number in the datastore
    first: int  # position of its first token in the datastore's tokens
    end: int  # position after its last token
    headings: tuple[str, ...]  # those that it stands under, the highest level first
    text: str
    language: str  # the ISO 639 code of its document's language
    sentences: tuple[Sentence, ...] = field(repr=False)  # without headings and lone questions

    @property
    def title(self) -> str:
        """The document's title or its id."""
        record = self.store.documents[self.document].shown
        return record.title or record.id

    @property
    def above(self) -> str:
        """Its title, if its document has one, and its headings in one line."""
        title = self.store.documents[self.document].shown.title
        return ": ".join(dict.fromkeys([title, *self.headings] if title else self.headings))

    def texts(self) -> list[str]:
        """The texts to encode: its sentences, each below title and headings."""
        return [self.below(sentence) for sentence in self.sentences]

    def below(self, sentence: Sentence) -> str:
        text = unlinked(sentence.whole)
        return f"{self.above}\n{text}" if self.above else text

    def in_context(self, sentence: Sentence) -> str:
        """A sentence as in `below`, after the one before it."""
        if not sentence.before:
            # Another sentence of a longer introduction may be the answer.
            return self.below(replace(sentence, lead=self.introduction(sentence)))
        text = self.below(sentence)
        at = len(text) - len(unlinked(sentence.text))
        return f"{text[:at]}{unlinked(sentence.before)} {text[at:]}"

    def introduction(self, sentence: Sentence) -> str:
        """The last sentence of what introduces a sentence; "" if nothing does."""
        *_, last = ["", *cut_sentences(sentence.lead, "p", self.language)]
        return last

    def joined(self, sentence: str, following: str) -> str:
        """Two sentences as the text has them: some scripts put no space between sentences."""
        whole = f"{sentence}{following}"
        return whole if whole in self.text else f"{sentence} {following}"

    def completed(self, sentence: Sentence, quote: str) -> str:
        """A quote below its list's introduction or table's header, or above what it introduces."""
        shown = sentence.shown(quote)
        if shown != quote:
            return shown
        lead = self.introduction(sentence)
        if lead and not _ENDS.search(lead):
            first, last = sentence_span(self.text, lead) or (0, 0)
            return f"{self.text[first:last] or lead}\n{quote}"
        place = sentence_span(self.text, quote) if quote.endswith(":") else None
        block = self.text[place[1] :].rstrip() if place else ""
        if len(block) > _MAX_INTRODUCED:
            block = block[:_MAX_INTRODUCED].rpartition("\n")[0]
        return f"{quote}{block}"


def sentence_span(text: str, sentence: str) -> tuple[int, int] | None:
    """Finds a sentence in a text, however its lines are broken; None if it is empty or missing."""
    words = r"\s+".join(map(re.escape, sentence.split()))
    match = re.search(words, text) if words else None
    return match.span() if match else None


def read_passages(tokenizer: Any, store: Datastore) -> list[Passage]:
    """The passages of all documents of a datastore, those that are removed included."""
    if store.manifest.learned is not None:
        return []
    control = control_ids(tokenizer)
    numbers = range(len(store.documents))
    return [row for number in numbers for row in _passages(tokenizer, store, number, control)]


def _passages(
    tokenizer: Any, store: Datastore, document: int, control: frozenset[int]
) -> Iterator[Passage]:
    record = store.documents[document]
    ids = np.asarray(store.tokens[record.first : record.first + record.length]).tolist()
    blocks = list(_shortened(tokenizer, record.blocks, ids))
    texts = [
        decoded(tokenizer, [id for id in ids[block.start : block.end] if id not in control])
        for block in blocks
    ]
    language = language_of("\n".join(texts)[:_LANGUAGE_CHARACTERS])
    names = {
        number: heading_name(texts[number])
        for number, block in enumerate(blocks)
        if block.kind in HEADINGS
    }
    lead = ""
    for begin, end in _groups(blocks):
        sentences: list[Sentence] = []
        for number in range(begin, end):
            block = blocks[number]
            if block.kind in HEADINGS:
                lead = names[number] if names[number].endswith(QUESTION_MARKS) else ""
                continue
            following = blocks[number + 1 : number + 2]
            if block.kind == "th" and any(row.lead == number for row in following):
                continue
            own = named = ""
            if block.lead is not None:
                own = " ".join(texts[block.lead].split())
                named = named_cells(texts[block.lead], texts[number]) if block.kind == "tr" else ""
            labels = block.kind in ("p", "li") and [row.kind for row in following] == ["p"]
            before = ""
            for text in cut_sentences(texts[number], block.kind, language):
                if text.endswith(QUESTION_MARKS) or (labels and is_label(text)):
                    lead = text
                else:
                    near = not (lead or own) and len(before) + len(text) < MAX_CHARACTERS
                    sentences.append(Sentence(text, lead or own, before if near else "", named))
                    lead = ""
                before = text
        last = blocks[end - 1]
        above = last.headings if last.kind not in HEADINGS else (*last.headings, end - 1)
        first = record.first + blocks[begin].start
        yield Passage(
            store,
            document,
            first,
            record.first + last.end,
            tuple(filter(None, (names.get(row) for row in above))),
            "".join(texts[begin:end]).strip(),
            language,
            tuple(sentences),
        )


def _shortened(
    tokenizer: Any, blocks: Sequence[TokenBlock], ids: Sequence[int]
) -> Iterator[TokenBlock]:
    """Cuts blocks that are too long for a passage. The numbers of other blocks change with them."""
    numbers: dict[int, int] = {}
    count = 0
    for number, block in enumerate(blocks):
        numbers[number] = count
        lead = None if block.lead is None else numbers[block.lead]
        headings = tuple(numbers[row] for row in block.headings)
        starts = [block.start]
        while block.end - starts[-1] > MAX_TOKENS:
            least, most = starts[-1] + PASSAGE_TOKENS, starts[-1] + MAX_TOKENS
            ends = (at for at in range(least, most) if _ENDS.search(decoded(tokenizer, [ids[at]])))
            starts.append(next(ends, most - 1) + 1)
        for start, end in zip(starts, [*starts[1:], block.end], strict=True):
            yield TokenBlock(block.kind, start, end, headings, lead)
        count += len(starts)


def _groups(blocks: Sequence[TokenBlock]) -> Iterator[tuple[int, int]]:
    """The numbers of each passage's first block and the one after its last."""
    begin = 0
    for number in range(1, len(blocks)):
        under = blocks[number - 1].kind in HEADINGS
        full = blocks[number].end - blocks[begin].start > PASSAGE_TOKENS
        if not under and (full or blocks[number].kind in HEADINGS):
            yield begin, number
            begin = number
    yield begin, len(blocks)


def heading_name(text: str) -> str:
    """A heading's text in one line, without its marks, images and addresses."""
    lines = [line for line in unlinked(text).splitlines() if any(map(str.isalnum, line))]
    return _CLOSING.sub("", " ".join(" ".join(lines).split()).lstrip("# "))


def is_label(text: str) -> bool:
    """Whether a block names what the paragraph after it is about, as a term its definition."""
    return len(text) <= _LABEL_CHARACTERS and len(text.split()) <= 3 and text[-1].isalnum()


def named_cells(header: str, row: str) -> str:
    """The cells of a table's row, each after the name of its column; "" if they do not fit."""
    names, cells = _cells(header), _cells(row)
    return "" if len(cells) > len(names) else with_names(names, cells)


def _cells(row: str) -> list[str]:
    """The cells of the first line of a table, in Markdown or between tabs."""
    line = row.strip("\n").partition("\n")[0]
    sign = "|" if line.startswith("|") else "\t"
    if sign == "|":
        line = line.strip().removeprefix("|").removesuffix("|")
    return [" ".join(cell.split()) for cell in line.split(sign)]


def cut_sentences(text: str, kind: str, language: str) -> Iterator[str]:
    """Yields the sentences of a block, without the marker of a list."""
    if kind == "pre":
        long = len(text) > MAX_CHARACTERS
        parts = [match[1] or match[2] for match in _CODE_CUT.finditer(text)] if long else [text]
        parts = [part.strip("\n") for part in parts]
    elif kind in ("tr", "th"):
        # The last row of a table in Markdown has the lines after it, such as addresses of links.
        row = text.strip("\n").partition("\n")[0] if text.startswith("|") else text
        parts = [" ".join(row.split())]
    else:
        marker = _MARKER.match(text)
        plain = " ".join(text[marker.end() if marker else 0 :].split())
        pieces = (piece[1] or piece[2] for piece in _BLOCK_CUT.finditer(plain))
        parts = [part for piece in pieces for part in sentences_of(piece, language)]
    for part in parts:
        if len(part) > MAX_CHARACTERS:
            yield from (match[1] or match[2] for match in _SENTENCE_CUT.finditer(part))
        elif any(map(str.isalnum, part)):
            yield part


def sentences_of(text: str, language: str) -> list[str]:
    """The sentences of a text, of which none ends within a name such as `http.Agent`."""
    import sentencex

    parts: list[str] = []
    for part in sentencex.segment(language, text):
        if parts and parts[-1].endswith(".") and re.match("[A-Za-z0-9]", part):
            parts[-1] += part
        else:
            parts.append(part)
    return [part.strip() for part in parts]


_importing = threading.Lock()


@cache
def bm25s() -> ModuleType:
    """Imports bm25s without JAX, which would reserve most of a GPU's memory to sort scores.

    It imports llvmlite where numba is installed, after which vLLM does not start on a CPU.
    """
    with _importing:
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
    "en": "english", "da": "danish", "nl": "dutch", "fr": "french", "de": "german",
    "it": "italian", "nb": "norwegian", "pt": "portuguese", "es": "spanish", "sv": "swedish",
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
    name = "EN_PLUS" if language == "en" else _LANGUAGES.get(language, "").upper()
    listed = getattr(bm25s().stopwords, f"STOPWORDS_{name}", ())
    return frozenset(map(folded, listed))


def language_of(text: str) -> str:
    """The ISO 639 code of a text's language: by its script, or by its common words."""
    for first, last, code in _SCRIPTS:
        if sum(first <= letter <= last for letter in text) > len(text) / 8:
            return code
    words = _WORD.findall(folded(text))
    return max(
        _LANGUAGES, key=lambda language: sum(word in common_words(language) for word in words)
    )


@cache
def _stemmer(language: str) -> Stemmer.Stemmer | None:
    return Stemmer.Stemmer(_LANGUAGES[language]) if language in _LANGUAGES else None


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
