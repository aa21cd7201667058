"""`knn-logits ask MODEL STORE... QUESTION` and `chat MODEL STORE...`: answers from documents."""

from __future__ import annotations

import io
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from knn_logits.cli.bars import Bars
from knn_logits.cli.corpus_options import CorpusOptions, Report
from knn_logits.cli.loading import RunOptions, read_text, reads_pairs
from knn_logits.cli.memory import MemoryOptions, OpenStores
from knn_logits.cli.options import Json, Model, argument, command
from knn_logits.cli.terminal import Output, Printed, doing, print_json, say, status, tell
from knn_logits.errors import ConfigError, KNNLogitsError
from knn_logits.printable import printable
from knn_logits.settings.config import AskConfig
from knn_logits.store import layout

if TYPE_CHECKING:
    from knn_logits.ask.answer import Answer
    from knn_logits.ask.asking import Asking


STORES_HELP = (
    "Folders of datastores, or org/name[@revision] on the Hub, or documents: files and folders to "
    "read for this command only. Several are searched as one."
)


@contextmanager
def opened_with_model(
    names: Sequence[str], model: str, run: RunOptions, memory: MemoryOptions
) -> Iterator[tuple[OpenStores, Any, Any]]:
    """Opens datastores and loads the model. Documents become a datastore until the end."""
    from knn_logits.store.hub_client import hub_name

    for name in names:
        if not Path(name).exists() and hub_name(name) is None:
            raise ConfigError(
                f"{printable(name)} does not exist: pass documents or a datastore; `ask` takes "
                "its question last, in quotes"
            )
    corpus = [name for name in names if Path(name).exists() and not _is_datastore(Path(name))]
    if not corpus:
        opened = memory.open(names)
        yield (opened, *run.load(model, opened.stores[0].folder))
        return
    if reads_pairs(model):
        raise ConfigError(
            f"{model} is an encoder-decoder, which needs a datastore of pairs: run `knn-logits "
            "build` first, and pass its folder"
        )
    from knn_logits.building.builder import build_datastore

    report = Report()
    with tempfile.TemporaryDirectory(prefix="knn-logits-") as folder:
        built = f"{folder}/documents"
        with Bars("nothing was kept", transient=True) as bars:
            documents = CorpusOptions().documents(corpus, report, bars, pairs=False)
            loaded, tokenizer = run.load(model)
            build_datastore(
                loaded, tokenizer, documents, built, progress=bars, skipped=report.skipped,
                store_keys=False, calibrate=False,
            )  # fmt: skip
        keeping = shlex.join(["knn-logits", "build", model, *corpus, "--out", "STORE"])
        tell(f"the documents are read for this command only; `{keeping}` keeps them", style=None)
        stores = [name for name in names if name not in corpus]
        yield memory.open([*stores, built]), loaded, tokenizer


def _is_datastore(path: Path) -> bool:
    return any((path / file).exists() for file in (layout.MANIFEST, layout.JOURNAL, layout.TOKENS))


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
    with opened_with_model(stores, model, run, memory) as (opened, loaded, tokenizer):
        from knn_logits.ask.asking import Asking
        from knn_logits.mixture.memory import Memory

        with opened.searching():
            opened_memory = Memory(loaded, opened.stores, **opened.keywords(run.threads))
            doing("answering")
            answer = Asking(loaded, tokenizer, opened_memory, asking).answer(question)
            if json:
                print_json(answer.to_dict())
                return
            say(printable(answer.text))
            if answer.note and (answer.answered or answer.alone):
                say(f"({answer.note})")
            for line in passages_shown(answer):
                say(f"\n{line}")


def passages_shown(answer: Answer) -> Iterator[str]:
    """The passages behind an answer, or the nearest sentences where none answers."""
    for passage in answer.passages:
        title = f"[{printable(passage.title)}]"
        if passage.read:
            effect = "" if passage.effect is None else f"\n(effect: {passage.effect:+.1f} nats)"
            yield f"{title}\n{printable(passage.text)}{effect}"
        else:
            yield f"Perhaps: “{printable(passage.sentence)}” {title}"


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
        if command in ("/quit", "/exit", "/bye"):
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
