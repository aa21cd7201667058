"""Chooses the sentence that answers a question: by the words that it shares, and by the model.

The model scores the question after each sentence: the query likelihood of Ponte and Croft (1998),
by a language model as in Sachan et al. (2022), "Improving Passage Retrieval with Zero-Shot Question
Generation", equation 2.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.ask.languages import language_of
from knn_logits.ask.meanings import Alike
from knn_logits.ask.passages import DESCRIBED, GAP, sentence_span
from knn_logits.ask.ranking import Ranked, content_words, words_of
from knn_logits.ask.spans import Span, answer_spans
from knn_logits.engine.forward import input_device, padded
from knn_logits.engine.pairs import context_length
from knn_logits.engine.tokens import text_ids

# The model scores this many sentences, the best by words and passage, in batches. One that is so
# many nats behind the best by words is not scored: the model's score does not make up for it.
_SCORED, _BATCH, _BEHIND = 12, 8, 6.0
# A batch has at most so many times the tokens of its texts: padding is computed too.
_PADDED = 1.2
# A sentence that gains so many times what a passage must gain is near without its passage.
_CLEARLY = 2.0
# Weights beside the query likelihood: of shared words, in nats, and of the passage's BM25 score.
_SHARED, _NAMED, _PASSAGE = 0.7, 0.2, 0.6
# Of so many sentences, those with the best scores, the likeliest answer is weighed too.
SPANS = 3
# The part of a sentence's shared words that counts for the next.
_BEFORE = 0.3
# The model scores the end of a longer question, and reads the end of a longer text before it.
_LONGEST_QUESTION, _LONGEST_TEXT = 256, 512
# What stands between two sentences is the group that matches.
_BOUNDARY = re.compile(
    r"[.!?][\"'”’)\]]*(\s+)(?=[A-Z0-9\"'“\u2018(\[`*_])|[。\uff01\uff1f]()|(\n\s*\n)"
)
# After an initial, a usual abbreviation or an item's number the sentence goes on.
_ABBREVIATED = re.compile(
    r"(?:^\d{1,3}|(?:^|[\s.(\[])(?:[A-Z]|e\.g|i\.e|cf|vs|ca|approx|Mr|Mrs|Ms|Dr|Prof|St|No|Nr|Fig|Vol"
    r"|Ch|Sec|Art|Ref|Qty|Tel))\.$"
)
_LONGEST_ABBREVIATION = 10
_LISTED = re.compile(r"[-*+•|>#]|\d+[.)]\s|[A-Z]:\s")
_SHORT_LINE = 60
# An empty line, or a rule: a line without a letter or a digit, such as "----" or "%".
_RULE = re.compile(r"(?:\A|\n)(?:(?:[^\w\n]|_)*\n)+")
# A line that ends so many characters before the margin was not broken for want of room.
_EARLY = 8
# "Created: 28-Apr-2007": a block of such lines is a record.
_FIELD = re.compile(r"\w[\w.-]*(?: [\w.-]+){0,3}:\s")
# What stands before an item of a list or an answer, and is no part of what it says.
_MARKER = re.compile(r"(?:[-*+•>]|\d+[.)]|[QA]:)\s+")
_HEADING = re.compile(r"#{1,6}\s")
# An entry of a table of contents, and what the fields at the top of Markdown say of a site.
_LINK = re.compile(r"(?:[-*+]\s+|\d+[.)]\s+)?\[[^\]]*\]\(#[^)]*\)$")
_OF_SITE = re.compile(r"(?:aliases|categories|keywords|layout|permalink|redirect_from|slug|tags):")
# The options of a directive of rST or MyST, such as ":align: center", and a line of a template of
# Jekyll, such as "{% include note %}", which are no sentences.
_OPTIONS = re.compile(
    r"^([ \t]*\.\. [\w:-]+::.*)(?:\n[ \t]+:[\w-]+:.*)+"
    r"|^([ \t]*(?:`{3,}|:{3,})\{[\w:-]+\}.*)(?:\n[ \t]*:[\w-]+:.*)+"
    r"|^[ \t]*\{%.*%\}[ \t]*$",
    re.MULTILINE,
)
# The sentence that introduces a list is read before each item if it has at most so many characters.
_LONGEST_OPENING = 200
# A list or code that is quoted with the sentence before it has at most so many characters.
_LONGEST_BLOCK = 600


@dataclass(frozen=True)
class Sentence:
    """A sentence of a passage that was ranked.

    Attributes:
        text: The sentence.
        source: Its passage.
        shared: The idf of the question's words that it has, with a part of those of the sentence
                before it.
        lead: What the model reads with it: the document's own question before it, the first row of
            its table, or the sentence that introduces its list.
        named: The idf of the question's words that name its passage.
    """

    text: str
    source: Ranked
    shared: float
    lead: str = ""
    named: float = 0.0

    @property
    def read(self) -> str:
        """What the model reads before the question. Few sentences say what they are about."""
        return f"{self.source.passage.above}\n{self.lead} {self.text}"


def sentences_of(text: str) -> list[str]:
    """Cuts a passage in sentences. The items of a list and the rows of a table are sentences."""
    parts: list[str] = []
    for block in _RULE.split(_OPTIONS.sub(r"\1\2", text)):
        lines = block.split("\n")
        widest = max(map(len, lines))
        record = 2 * sum(_FIELD.match(line) is not None for line in lines) > len(lines)
        joined = lines[0]
        for before, line in pairwise(lines):
            begins = _LISTED.match(line.strip()) or (record and _FIELD.match(line))
            is_row = GAP.search(before) and GAP.search(line)
            short = widest < _SHORT_LINE or _ends_early(before, line, widest)
            apart = short or begins or is_row or _HEADING.match(before.strip())
            joined += ("\n\n" if apart else "\n") + line
        parts += _cut(joined)
    return [part for part in parts if any(map(str.isalnum, part))]


def _ends_early(before: str, line: str, widest: int) -> bool:
    """Whether the next line's first word had room, begins a sentence, and is not indented more."""
    word = line.split(maxsplit=1)[0] if line.strip() else ""
    deeper = len(line) - len(line.lstrip()) > len(before) - len(before.lstrip())
    room = len(before) + len(word) + _EARLY <= widest
    return room and word[:1].isupper() and not deeper and not before.rstrip().endswith(",")


def _spaced(text: str) -> str:
    """A text in one line. Two spaces stand between the cells of a row."""
    return "  ".join(" ".join(cell.split()) for cell in GAP.split(text.strip()))


def _cut(text: str) -> Iterator[str]:
    start = 0
    for match in _BOUNDARY.finditer(text):
        begin, end = match.span(match.lastindex or 0)
        before = text[max(start, begin - _LONGEST_ABBREVIATION) : begin]
        if match.lastindex != 1 or not _ABBREVIATED.search(before):
            yield _spaced(text[start:begin])
            start = end
    yield _spaced(text[start:])


def candidates(
    question: str,
    ranked: Sequence[Ranked],
    idf: Callable[[str], float],
    alike: Alike | None = None,
) -> list[Sentence]:
    """Lists the sentences of passages that may answer a question, the likeliest first.

    A question in a document is not an answer: what follows it is.
    """
    language = language_of(question)
    weights: dict[str, Mapping[str, float]] = {}
    for word in set(content_words(question, language)):
        others = (alike or {}).get(word, {})
        rare = idf(word)
        weights[word] = {word: rare} | {like: rare * part for like, part in others.items()}
    listed = []
    for row in ranked:
        before, lead = 0.0, ""
        opening, opened = "", 0.0  # the sentence that introduces a list, and what it shares
        named = _shared(weights, set(words_of(row.passage.named, language)))
        names = _table_rows(row.passage.text)
        title = row.passage.title
        headings = {title, f"Title: {title}", f"title: {title}"}
        headings |= {row.passage.heading, *row.passage.over}
        for text in sentences_of(row.passage.text):
            name = names.get(text, "")
            before = 0.0 if name else before  # the row above is about something else
            words = set(words_of(f"{name} {text}", language))
            shared = _shared(weights, words)
            is_question = text.endswith("?")
            is_heading = " ".join(text.split()) in headings or any(
                pattern.match(text) for pattern in (_HEADING, DESCRIBED, _LINK, _OF_SITE)
            )
            if is_heading:
                opening = ""
            if not is_question and not is_heading:
                is_item = bool(opening and _MARKER.match(text))
                before = max(before, opened) if is_item else before
                total = max(shared, before) if lead else shared + _BEFORE * before
                above = lead or name or (opening if is_item else "")
                listed.append(Sentence(_without_marker(text), row, total, above, named))
                if text.endswith(":") and len(text) <= _LONGEST_OPENING:
                    opening, opened = text, shared
            before = shared if is_question or is_heading else shared + _BEFORE * before
            lead = text if is_question else ""
    return sorted(listed, key=lambda sentence: -sentence.shared)


def _shared(weights: Mapping[str, Mapping[str, float]], words: Collection[str]) -> float:
    """What words have of a question's: of each the word itself, or the best that is like it."""
    return sum(
        max((weight for word, weight in alike.items() if word in words), default=0.0)
        for alike in weights.values()
    )


def _table_rows(text: str) -> dict[str, str]:
    """The rows of tables, each with the first of its table: it names what stands in a cell."""
    rows: dict[str, str] = {}
    first, cells = "", 0
    for line in text.splitlines():
        if not any(map(str.isalnum, line)):
            continue
        row, before = _spaced(line), cells
        cells = line.count("|") or len(GAP.findall(line))
        if not cells or cells != before:
            first = row
        else:
            rows[row] = first
    return rows


def _without_marker(text: str) -> str:
    marker = _MARKER.match(text)
    return text[marker.end() :] if marker else text


@torch.no_grad()
def query_likelihoods(
    model: Any, tokenizer: Any, question: str, sentences: Sequence[str]
) -> tuple[Array, int]:
    """Computes log p(question | sentence), float64 [sentences], and counts the forward passes."""
    ids = _question_ids(model, tokenizer, question)
    context = context_length(model)
    most = _LONGEST_TEXT if context is None else min(_LONGEST_TEXT, max(1, context - len(ids)))
    begins = [text_ids(tokenizer, f"{sentence}\nQuestion:")[-most:] for sentence in sentences]
    tokens = torch.tensor(ids)[:, None]
    partial = "logits_to_keep" in inspect.signature(model.forward).parameters
    likelihoods = np.zeros(len(sentences))
    batches = _batches([len(begin) + len(ids) for begin in begins])
    for batch in batches:
        rows = [np.array([*begins[row], *ids]) for row in batch]
        # The shortest row begins the question first.
        before = len(begins[batch[0]]) - 1 if partial else 0
        keep = {"logits_to_keep": len(rows[-1]) - before} if partial else {}
        logits = model(**padded(rows, input_device(model)), use_cache=False, **keep).logits
        for place, row in enumerate(batch):
            first = len(begins[row]) - 1 - before
            log_p = logits[place, first : first + len(ids)].float().log_softmax(dim=-1)
            likelihoods[row] = float(log_p.gather(1, tokens.to(log_p.device)).sum())
    return likelihoods, len(batches)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Groups texts of about the same length, the shortest first."""
    batches: list[list[int]] = []
    total = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        size = len(batches[-1]) + 1 if batches else 0
        total += lengths[row]
        if not 0 < size <= _BATCH or lengths[row] * size > _PADDED * total:
            batches.append([])
            total = lengths[row]
        batches[-1].append(row)
    return batches


def _question_ids(model: Any, tokenizer: Any, question: str) -> list[int]:
    """The tokens of a question that are scored."""
    context = context_length(model)
    most = _LONGEST_QUESTION if context is None else min(_LONGEST_QUESTION, context // 2)
    return text_ids(tokenizer, f" {question}", around=False)[-most:]


def is_near(
    model: Any,
    tokenizer: Any,
    question: str,
    listed: Sequence[Sentence],
    passages: Sequence[str],
    least: float,
) -> tuple[bool, dict[str, float], int]:
    """Whether a passage, or clearly the best sentence by words, makes a question likelier.

    Returns that, log p(question | sentence) by sentence, and the number of forward passes.
    """
    texts = ["", max(listed, key=_by_words).read if listed else ""]
    (alone, first), count = query_likelihoods(model, tokenizer, question, texts)
    total = least * len(_question_ids(model, tokenizer, question))
    near = first - alone >= _CLEARLY * total
    # The first passage is mostly enough.
    for batch in (passages[:1], passages[1:]):
        if batch and not near:
            likelihoods, further = query_likelihoods(model, tokenizer, question, batch)
            near, count = max(likelihoods) - alone >= total, count + further
    return bool(near), {texts[1]: float(first)}, count


def _by_words(sentence: Sentence) -> float:
    """The score of a sentence without the model."""
    return _SHARED * sentence.shared + _NAMED * sentence.named + _PASSAGE * sentence.source.score


def _completed(sentence: Sentence) -> Sentence:
    """A sentence that ends with a colon, with the list or the code that it introduces."""
    passage = sentence.source.passage.text
    place = sentence_span(passage, sentence.text) if sentence.text.endswith(":") else None
    if place is None:
        return sentence
    block = ""
    for part in re.split(r"(\n[ \t]*\n)", passage[place[1] :]):
        if len(block) + len(part) > _LONGEST_BLOCK:
            break
        block += part
        if any(map(str.isalnum, part)) and not part.strip().startswith(".. "):
            break
    return replace(sentence, text=(sentence.text + block).rstrip())


def best_sentence(
    model: Any,
    tokenizer: Any,
    question: str,
    listed: Sequence[Sentence],
    scored: Mapping[str, float] | None = None,
) -> tuple[Sentence | None, Span | None, int]:
    """Chooses the sentence to quote and its words that answer, and counts the forward passes.

    `scored` has log p(question | sentence) of the sentences for which it is known.
    """
    if not listed:
        return None, None, 0
    listed = sorted(listed, key=_by_words, reverse=True)[:_SCORED]
    least = _by_words(listed[0]) - _BEHIND
    listed = [row for row in listed if _by_words(row) >= least]
    scored = scored or {}
    texts = [row.read for row in listed if row.read not in scored]
    likelihoods, passes = query_likelihoods(model, tokenizer, question, texts)
    scored = {**scored, **dict(zip(texts, likelihoods, strict=True))}
    scores = np.array([scored[row.read] + _by_words(row) for row in listed])
    order = (-scores).argsort()[:SPANS]
    best, highest = [listed[row] for row in order], scores[order].tolist()
    spans, further = answer_spans(
        model, tokenizer, question, [(row.lead, row.text) for row in best], highest
    )
    least = min((span.score for span in spans if span), default=0.0)
    totals = [
        score + (span.score if span else least) for score, span in zip(highest, spans, strict=False)
    ]
    chosen = totals.index(max(totals))
    return _completed(best[chosen]), spans[chosen], passes + further
