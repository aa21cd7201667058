"""`knn-logits chat MODEL STORE...`: a conversation. The datastores are opened once."""

from __future__ import annotations

import io
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knn_logits.ask.config import AskConfig, Words
from knn_logits.cli.ad_hoc import StoresOrDocuments, opened_with_model
from knn_logits.cli.explain import TraceOptions, writing
from knn_logits.cli.loading import RunOptions
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Draft, Model, command
from knn_logits.cli.terminal import Output, Printed, doing, say, status, tell
from knn_logits.errors import ConfigError, KNNLogitsError
from knn_logits.printable import one_line, printable
from knn_logits.settings.declaration import setting, settings_of
from knn_logits.settings.registry import settings_for, settings_words

if TYPE_CHECKING:
    from rich.console import Console

    from knn_logits.ask.answer import Answer
    from knn_logits.evidence.trace import Trace
    from knn_logits.mixture.memory import Memory

_WORDS = settings_of(AskConfig)["words"]
_HELP = f"""\
Ask a question, or with --continue type a text, which the model continues. Commands begin with /:
  /why            show the sources of the latest answer
  /why WORD       show the sources of one of its words; /why 3 takes its third word
  /knn on|off     answer with the memory, or with the model alone
  /ask on|off     answer questions from the documents, or continue texts
  /without DOC    leave out the document with this id or title; /with DOC takes it back
  /set NAME VALUE change {", ".join(settings_for("chat"))} or tokens (the most that are written)
  /settings       show the present settings
  /save FILE      write the latest answer or trace as JSON, or a trace as a page (*.html)
  /new            forget the conversation
  /quit           leave, as Ctrl-D does; Ctrl-C only stops an answer"""
_NO_ANSWER = "there is no answer from the memory yet: enter a prompt first"
# The settings that /set changes, and the types of their values.
_SETTABLE = {name: declared.kind or str for name, declared in settings_for("chat").items()}
_SETTABLE["tokens"] = int


@dataclass
class Chat:
    """A conversation in a terminal."""

    model: Any
    tokenizer: Any
    memory: Memory
    console: Console
    tokens: int = 120
    seed: int = 0
    sample: bool = False
    draft: bool = True
    with_knn: bool = True
    asks: bool = False
    words: Words = _WORDS.default
    # Whether the next answer is followed by how to see its sources.
    hints: bool = False
    reply: Answer | None = None
    trace: Trace | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)

    def take(self, line: str) -> bool:
        if not line.strip():
            return True
        if not line.startswith("/"):
            before = list(self.messages)
            try:
                self.answer(line)
            except BaseException:
                # A message without its answer would stand in the way of every later one.
                self.messages = before
                raise
            return True
        name, *arguments = _words(line[1:]) or [""]
        if name in ("quit", "exit", "q"):
            return False
        command = getattr(self, f"_on_{name}", None)
        if command is None:
            raise ConfigError(f"/{name} is not a command; /help lists the commands")
        try:
            command(*arguments)
        except TypeError as error:
            raise ConfigError(f"/{name} has other arguments; see /help") from error
        return True

    def answer(self, prompt: str) -> None:
        if self.asks and self.with_knn:
            self._ask(prompt)
        else:
            self._continue(prompt)
        if self.hints and (self.reply or self.trace):
            self.console.print("/why shows where each word comes from.", style="dim")
            self.hints = False

    def _ask(self, question: str) -> None:
        import transformers

        from knn_logits.ask.asking import Asking

        exclude = tuple(self.without) or None
        memory = self.memory.asked(**{**self.settings, "exclude": exclude})
        config = AskConfig(
            words=self.words, max_new_tokens=self.tokens, sample=self.sample, draft=self.draft
        )
        transformers.set_seed(self.seed)
        printed = Printed(self.console, self.tokenizer)
        doing("answering")
        asking = Asking(self.model, self.tokenizer, memory, config)
        self.reply, self.trace = asking.answer(question, self.messages, printed), None
        if not printed.begun:
            self.console.print(printable(self.reply.text), markup=False)
        sources = [f"[{row.title}]" for row in self.reply.passages if row.read]
        for line in [*self.reply.note.splitlines(), *sources]:
            style = "dim" if line in sources else "yellow"
            self.console.print(printable(line), style=style, markup=False)
        self.messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": self.reply.text},
        ]

    def _continue(self, prompt: str) -> None:
        import transformers

        from knn_logits.evidence.render import ALONE
        from knn_logits.generation.processor import KNNLogitsProcessor

        self.reply = None
        settings = self._request(prompt)
        doing("writing")
        transformers.set_seed(self.seed)
        if not self.with_knn:
            streamer = Printed(self.console, self.tokenizer)
            output = self.model.generate(**settings, streamer=streamer)
            self.trace = None
        else:
            settings_of_memory = {**self.settings, "exclude": tuple(self.without) or None}
            with KNNLogitsProcessor(self.model, self.memory, **settings_of_memory) as knn:
                streamer = Printed(self.console, self.tokenizer, knn)
                output = knn.generate(**settings, draft=self.draft, streamer=streamer)
                self.trace = knn.trace(output, self.tokenizer, prompt=prompt)
            if self.trace[0].alone:
                self.console.print(ALONE, style="dim", markup=False)
        if self._templated:
            new = output[0, settings["input_ids"].shape[1] :]
            text = self.tokenizer.decode(new, skip_special_tokens=True)
            self.messages.append({"role": "assistant", "content": str(text)})

    def _request(self, prompt: str) -> dict[str, Any]:
        from knn_logits.engine.pairs import context_length

        ids = self._ids(prompt)
        if not ids.shape[1]:
            raise ConfigError("the text contains no tokens for this model: enter another text")
        room = context_length(self.model)
        tokens = self.tokens if room is None else min(self.tokens, room - ids.shape[1])
        if tokens < 1:
            raise ConfigError(
                f"the text has {ids.shape[1]} tokens, but the model's context is {room}: start "
                "over with /new, or shorten the text"
            )
        return {
            "input_ids": ids,
            "attention_mask": ids.new_ones(ids.shape),
            "max_new_tokens": tokens,
            "do_sample": self.sample,
        }

    @property
    def _templated(self) -> bool:
        """Whether a prompt is a question, and not a text to continue."""
        return self.asks and getattr(self.tokenizer, "chat_template", None) is not None

    def _ids(self, prompt: str) -> Any:
        """Ids of a prompt, int64 [1, length]; of a question, in the model's chat template."""
        import torch

        from knn_logits.engine.tokens import chat_ids, text_ids

        if self._templated:
            self.messages.append({"role": "user", "content": prompt})
            ids = chat_ids(self.tokenizer, self.messages, add_generation_prompt=True)
        else:
            ids = text_ids(self.tokenizer, prompt)
        return torch.tensor([ids], device=self.model.device)

    def _on_help(self) -> None:
        say(_HELP)

    def _on_why(self, *words: str) -> None:
        from knn_logits.cli.ask import passages_shown, tokens_of_word, word_lines
        from knn_logits.evidence.render import show, show_word, with_store_names

        if self.reply is not None:
            by_word = bool(words and self.reply.tokens)
            tokens = tokens_of_word(self.reply, " ".join(words)) if by_word else []
            lines = word_lines(self.reply, tokens) if by_word else passages_shown(self.reply)
            for line in lines:
                say(line)
            return
        if self.trace is None:
            raise ConfigError(_NO_ANSWER)
        if not words:
            show(self.trace, 12, self.console)
            return
        tokens = tokens_of_word(with_store_names(self.trace)[0], " ".join(words))
        show_word(tokens, self.console)

    def _on_knn(self, state: str = "") -> None:
        self.with_knn = _switched("knn", self.with_knn, state)
        self.console.print(f"the memory is {'on' if self.with_knn else 'off'}", style="dim")

    def _on_ask(self, state: str = "") -> None:
        self.asks = _switched("ask", self.asks, state)
        kind = "questions are answered" if self.asks else "texts are continued"
        self.console.print(kind, style="dim")

    def _on_without(self, *words: str) -> None:
        document = " ".join(words)
        if not document:
            raise ConfigError(
                "usage: /without DOCUMENT, with its id or title; /why lists the titles"
            )
        # This refuses an id that no datastore has.
        self.memory.asked(exclude=(*self.without, document))
        self.without.append(document)
        if self.messages:
            self.messages.clear()
            notice = "the conversation is forgotten: its answers may quote the document"
            self.console.print(notice, style="dim")
        self._on_settings()

    def _on_with(self, *words: str) -> None:
        document = " ".join(words)
        if document not in self.without:
            raise ConfigError(
                f"{document!r} is not excluded; /settings lists the excluded documents"
            )
        self.without.remove(document)
        self._on_settings()

    def _on_set(self, name: str, value: str) -> None:
        if name not in _SETTABLE:
            raise ConfigError(f"/set takes {', '.join(_SETTABLE)}, not {name!r}")
        try:
            number: Any = _SETTABLE[name](value)
        except ValueError as error:
            raise ConfigError(f"/set {name} takes a number, not {value!r}") from error
        if name == "tokens":
            if number < 1:
                raise ConfigError("/set tokens must be an integer of at least 1")
            self.tokens = number
        else:
            self.memory.asked(**{**self.settings, name: number})
            self.settings[name] = number
        self._on_settings()

    def _on_settings(self) -> None:
        from knn_logits.mixture.gates.gate import gate_line

        memory = self.memory.asked(**self.settings)
        parts = settings_words(memory.config)
        if memory.gate is not None:
            chosen = f"lmbda by {gate_line(memory.gate)}"
            parts = [chosen if part.startswith("lmbda ") else part for part in parts]
        if self.asks:
            parts = ["questions are answered from the documents: /ask off continues texts"]
        parts += [f"tokens {self.tokens}", f"the memory is {'on' if self.with_knn else 'off'}"]
        if self.without:
            parts.append("without " + ", ".join(one_line(id) for id in self.without))
        self.console.print("; ".join(parts), style="dim", markup=False)

    def _on_save(self, file: str) -> None:
        if self.reply is not None:
            with writing(file):
                self.reply.save(file)
            tell(f"written: {file}", style=None)
        elif self.trace is not None:
            kind = "html" if file.endswith(".html") else "save"
            TraceOptions(**{kind: file}).keep(self.trace)
        else:
            raise ConfigError(_NO_ANSWER)

    def _on_new(self) -> None:
        self.messages.clear()
        self.trace = self.reply = None


def _switched(name: str, now: bool, state: str) -> bool:
    if state not in ("", "on", "off"):
        raise ConfigError(f"usage: /{name} on or /{name} off")
    return state == "on" if state else not now


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"cannot parse the line ({error}); check its quotation marks") from error


@command
def chat(
    model: Model,
    stores: StoresOrDocuments,
    memory: MemoryOptions,
    run: RunOptions,
    max_new_tokens: int = setting(120, "Maximum number of tokens per answer.", least=1),
    sample: bool = setting(False, "Sample instead of greedy decoding."),
    draft: Draft = True,
    continues: bool = setting(
        False,
        "Continue texts like `generate`. By default, a model with a chat template answers "
        "questions from the documents.",
        option="--continue",
    ),
    words: Words = setting(_WORDS.default, _WORDS.help),
) -> None:
    """Chat about the documents, or continue texts.

    /help lists the commands, /why shows the sources of each word.
    """
    with (
        opened_with_model(stores, model, run, memory.open) as (opened, loaded, tokenizer),
        opened.searching(),
    ):
        if loaded.config.is_encoder_decoder:
            raise ConfigError(
                "chat needs a causal model; use `knn-logits generate` with an encoder-decoder"
            )
        from knn_logits.engine.compatibility import check_tokenizer
        from knn_logits.mixture.memory import Memory

        check_tokenizer(tokenizer, opened.stores[0])
        doing("checking the datastore")
        keywords = opened.keywords(run.threads)
        without = list(keywords.pop("exclude", ()))
        console = Output()
        talk = Chat(
            loaded,
            tokenizer,
            Memory(loaded, opened.stores, **keywords),
            console,
            max_new_tokens,
            run.seed,
            sample,
            draft,
            asks=bool(getattr(tokenizer, "chat_template", None)) and not continues,
            words=words,
            hints=sys.stdin.isatty(),
            without=without,
        )
        if sys.stdin.isatty():
            kind = "Ask a question" if talk.asks else "Type a text to continue"
            console.print(f"{kind}; /help lists the commands.", style="dim")
        _converse(talk)


def _converse(talk: Chat) -> None:
    if sys.stdin.isatty():
        import readline  # noqa: F401  # gives `input` its history
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A strict stream would end the conversation at a wrong byte.
        sys.stdin.reconfigure(errors="surrogateescape")
    while True:
        try:
            status.clear()
            line = input("> " if sys.stdin.isatty() else "")
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
