"""`knn-logits ask MODEL STORE... QUESTION`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from knn_logits.ask.config import AskConfig
from knn_logits.cli.ad_hoc import STORES_HELP, opened_with_model
from knn_logits.cli.bars import interruptible
from knn_logits.cli.loading import RunOptions, read_text
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Json, Model, argument, command
from knn_logits.cli.terminal import doing, print_json, say
from knn_logits.errors import ConfigError
from knn_logits.printable import printable

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer, AnswerToken


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
    json: Json = False,
) -> None:
    """Answer a question from documents, with the source of every word."""
    if len(words) < 2:
        raise ConfigError("pass a datastore or documents, then a quoted question")
    *stores, question = words
    question = read_text(question).strip()
    if not question:
        raise ConfigError("the question is empty: enter one")
    with opened_with_model(stores, model, run, memory.open) as (opened, loaded, tokenizer):
        from knn_logits.ask.asking import Asking
        from knn_logits.mixture.memory import Memory

        with interruptible("nothing was answered"), opened.searching():
            opened_memory = Memory(loaded, opened.stores, **opened.keywords(run.threads))
            doing("answering")
            answer = Asking(loaded, tokenizer, opened_memory, asking).answer(question)
            if json:
                print_json(answer.to_dict())
                return
            say(printable(answer.text))
            if answer.alone:
                say(f"({answer.note})")
            for line in passages_shown(answer):
                say(f"\n{line}")


def passages_shown(answer: Answer) -> Iterator[str]:
    """The passages behind an answer, or the nearest sentences where none answers."""
    for passage in answer.passages:
        title = f"[{printable(passage.title)}]"
        if passage.read:
            effect = answer.effect_line(passage)
            below = "" if effect is None else f"\n({effect})"
            yield f"{title}\n{printable(passage.text)}{below}"
        else:
            yield f"Perhaps: “{printable(passage.sentence)}” {title}"


def word_lines(answer: Answer, tokens: list[AnswerToken]) -> Iterator[str]:
    """Lines with the effect of each document on a word, and the passage that has the word."""
    word = "".join(token.token for token in tokens).strip()
    source = next((token.source for token in tokens if token.source is not None), None)
    says = "no passage has it" if source is None else f"in {answer.passages[source].title}"
    yield printable(f"»{word}«  {says}")
    for line in answer.word_lines(tokens):
        yield printable(f"    {line}")


def tokens_of_word(answer: Answer, word: str) -> list[AnswerToken]:
    """The tokens of a word of an answer. The word is given by its number or its text."""
    from knn_logits.evidence.sources import PUNCTUATION, words_of

    groups = [(group, "".join(token.token for token in group)) for group in words_of(answer.tokens)]
    words = [(group, text.strip()) for group, text in groups if text.strip().strip(PUNCTUATION)]
    if word.isdecimal():
        if not 1 <= int(word) <= len(words):
            raise ConfigError(f"the answer has only {len(words)} words, not {word}")
        return words[int(word) - 1][0]
    found = [group for group, text in words if word.lower() in text.lower()]
    exact = [group for group, text in words if word.lower() == text.lower().strip(PUNCTUATION)]
    if not found:
        raise ConfigError(
            f"the answer does not contain {word!r}; /why without a word shows all sources"
        )
    return [*exact, *found][0]
