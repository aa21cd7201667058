"""`knn-logits ask MODEL STORE... QUESTION`."""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from knn_logits.ask.config import AskConfig
from knn_logits.cli.ad_hoc import STORES_HELP, opened_with_model
from knn_logits.cli.bars import interruptible
from knn_logits.cli.loading import RunOptions, read_text
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Json, Model, argument, command
from knn_logits.cli.terminal import doing, print_json, say
from knn_logits.errors import ConfigError
from knn_logits.printable import printable
from knn_logits.settings.declaration import setting

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer, AnswerToken
    from knn_logits.evidence.records import SequenceTrace

# Maximum number of characters that are shown of a passage, and of those before the quotation.
_MAX_CHARACTERS, _MAX_LEAD = 400, 120
_SPACE = re.compile(r"\s+")
_LONGEST_WORD = 40


@command
def ask(
    model: Model,
    words: Annotated[
        list[str],
        argument("STORE... QUESTION", f"{STORES_HELP} Then the question; - reads standard input."),
    ],
    memory: MemoryOptions,
    asking: AskConfig,
    run: RunOptions,
    questions: str | None = setting(
        None,
        "Answer the questions in a file: JSON lines with `question` and an optional `id`.",
        metavar="FILE",
    ),
    json: Json = False,
) -> None:
    """Answer a question from documents, with the source of every word."""
    stores, rows = _asked(words, questions)
    with opened_with_model(stores, model, run, memory.open) as (opened, loaded, tokenizer):
        from knn_logits.ask.asking import Asking
        from knn_logits.mixture.memory import Memory

        with interruptible("answered the questions so far"), opened.searching():
            opened_memory = Memory(loaded, opened.stores, **opened.keywords(run.threads))
            asker = Asking(loaded, tokenizer, opened_memory, asking)
            for row in rows:
                doing("answering")
                answer = asker.answer(row["question"])
                if json:
                    identity = {"id": row["id"]} if "id" in row else {}
                    print_json(identity | answer.to_dict())
                else:
                    _print(answer, numbered=len(rows) > 1)


def _asked(words: list[str], questions: str | None) -> tuple[list[str], list[dict[str, Any]]]:
    if questions is not None:
        return words, list(_questions(questions))
    if len(words) < 2:
        raise ConfigError(
            "pass a datastore or documents, then a quoted question, or use --questions FILE"
        )
    question = read_text(words[-1]).strip()
    if not question:
        raise ConfigError("the question is empty: enter one")
    return words[:-1], [{"question": question}]


def _questions(file: str) -> Iterator[dict[str, Any]]:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"cannot read the questions in {file} ({reason})") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json_module.loads(line)
        except ValueError:
            row = None
        question = row.get("question") if isinstance(row, dict) else None
        if not isinstance(question, str) or not question.strip():
            raise ConfigError(
                f'line {number} of {file} has no question: write {{"question": "..."}} on each line'
            )
        yield row


def _print(answer: Answer, *, numbered: bool) -> None:
    if numbered:
        say(f"> {printable(answer.question)}")
    say(printable(answer.text))
    if answer.alone:
        say(f"({answer.note})")
    for line in passages_shown(answer):
        say(f"\n{line}")
    if numbered:
        say()


def passages_shown(answer: Answer) -> Iterator[str]:
    """The passages behind an answer, or the nearest sentences where none answers."""
    for passage in answer.passages:
        title = f"[{printable(passage.title)}]"
        if passage.read:
            effect = answer.effect_line(passage)
            below = "" if effect is None else f"\n({effect})"
            yield f"{title}\n{printable(_excerpt(passage.text, passage.find()))}{below}"
        else:
            yield f"Perhaps: “{printable(passage.sentence)}” {title}"


def _excerpt(text: str, span: tuple[int, int] | None) -> str:
    """The part of a passage that is shown: its beginning, or if the quotation is later, that."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    begin, end = span or (0, 0)
    first = 0 if end <= _MAX_CHARACTERS else max(0, begin - _MAX_LEAD)
    last = max(end, first + _MAX_CHARACTERS)
    if first and (gap := _SPACE.search(text, first, begin)):
        first = gap.end()
    if last < len(text):
        gaps = list(_SPACE.finditer(text, max(end, last - _LONGEST_WORD), last + 1))
        last = gaps[-1].start() if gaps else last
    return f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"


def word_lines(answer: Answer, tokens: list[AnswerToken]) -> Iterator[str]:
    """Lines with the effect of each document on a word, and the passage that has the word."""
    word = "".join(token.token for token in tokens).strip()
    source = next((token.source for token in tokens if token.source is not None), None)
    says = "no passage has it" if source is None else f"in {answer.passages[source].title}"
    yield printable(f"»{word}«  {says}")
    for line in answer.word_lines(tokens):
        yield printable(f"    {line}")


def tokens_of_word(sequence: SequenceTrace | Answer, word: str) -> list[Any]:
    """The tokens of a word of an answer. The word is given by its number or its text."""
    from knn_logits.evidence.sources import PUNCTUATION, words_of

    groups = [
        (group, "".join(token.token for token in group)) for group in words_of(sequence.tokens)
    ]
    words = [(group, text.strip()) for group, text in groups if text.strip().strip(PUNCTUATION)]
    if word.isdecimal():
        if not 1 <= int(word) <= len(words):
            raise ConfigError(f"the answer has only {len(words)} words, not {word}")
        return words[int(word) - 1][0]
    low = word.lower()
    for same in (
        lambda text: text == word,
        lambda text: text.strip(".,;:!?\"'()").lower() == low,
        lambda text: low in text.lower(),
    ):
        for group, text in words:
            if same(text):
                return group
    raise ConfigError(
        f"the answer does not contain {word!r}; /why without a word shows all sources"
    )
