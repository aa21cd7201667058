"""`knn-logits chat MODEL STORE...`: a conversation. The datastores are opened once."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from knn_logits.ask.config import AskConfig
from knn_logits.cli.ask import STORES_HELP, opened_with_model, passages_shown
from knn_logits.cli.loading import RunOptions
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Model, argument, command
from knn_logits.cli.terminal import Output, Printed, doing, say, status, tell
from knn_logits.errors import ConfigError, KNNLogitsError
from knn_logits.printable import printable

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer
    from knn_logits.ask.asking import Asking

_HELP = """\
Ask a question. Commands begin with /:
  /why    show the passages of the latest answer
  /new    forget the conversation
  /quit   leave, as Ctrl-D does; Ctrl-C only stops an answer"""


@dataclass
class Chat:
    """A conversation in a terminal."""

    asking: Asking
    seed: int = 0
    reply: Answer | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """Answers a question or obeys a command; returns whether the conversation goes on."""
        command = line.strip().partition(" ")[0]
        if command == "/quit":
            return False
        if command == "/help":
            say(_HELP)
        elif command == "/new":
            self.messages.clear()
        elif command == "/why":
            self._why()
        elif command.startswith("/"):
            raise ConfigError(f"{command} is not a command; /help lists the commands")
        elif command:
            self._answer(line)
        return True

    def _answer(self, question: str) -> None:
        import transformers

        transformers.set_seed(self.seed)
        printed = Printed(Output(), self.asking.tokenizer)
        doing("answering")
        self.reply = self.asking.answer(question, self.messages, printed)
        if not printed.begun:
            say(self.reply.text)
        lines = [*self.reply.note.splitlines()]
        lines += [f"[{passage.title}]" for passage in self.reply.passages if passage.read]
        for line in lines:
            Output().print(printable(line), style="dim", markup=False)
        self.messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": self.reply.text},
        ]

    def _why(self) -> None:
        if self.reply is None:
            raise ConfigError("there is no answer yet: ask a question first")
        for line in passages_shown(self.reply):
            say(line)


@command
def chat(
    model: Model,
    stores: Annotated[list[str], argument("STORE...", STORES_HELP)],
    memory: MemoryOptions,
    asking: AskConfig,
    run: RunOptions,
) -> None:
    """Chat about the documents.

    /help lists the commands, /why shows the sources of an answer.
    """
    with (
        opened_with_model(stores, model, run, memory) as (opened, loaded, tokenizer),
        opened.searching(),
    ):
        from knn_logits.ask.asking import Asking
        from knn_logits.mixture.memory import Memory

        doing("checking the datastore")
        opened_memory = Memory(loaded, opened.stores, **opened.keywords(run.threads))
        _converse(Chat(Asking(loaded, tokenizer, opened_memory, asking), run.seed))


def _converse(talk: Chat) -> None:
    by_hand = sys.stdin.isatty()
    if by_hand:
        import readline  # noqa: F401  # gives `input` its history

        say("Ask a question; /help lists the commands.")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A strict stream would end the conversation at a wrong byte.
        sys.stdin.reconfigure(errors="surrogateescape")
    while True:
        try:
            status.clear()
            line = input("> " if by_hand else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            say()
            continue
        try:
            line.encode("utf-8")
            if not talk.take(line):
                return
        except KeyboardInterrupt:
            say()
            tell("answer stopped", style=None)
        except UnicodeEncodeError:
            tell("the line is not valid UTF-8 and was ignored")
        except KNNLogitsError as error:
            tell(str(error))
