"""What the subcommands share: loading a model, drawing progress, printing JSON."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from knn_logits.errors import ConfigError, ModelError, StorageError
from knn_logits.printable import json_line, one_line, printable
from knn_logits.progress import WHOLE

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore

stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """Prints an answer on stdout, whatever characters it has."""
    print(printable(text))


def tell(text: str, style: str | None = "yellow") -> None:
    """Prints a warning as one line on stderr, below any progress bar."""
    stderr.print(f"knn-logits: {one_line(text).strip()}", style=style, markup=False)


class _OneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


def listen() -> None:
    """Prints the package's warnings as lines on stderr, and lets streams take every character."""
    # The Hub's client reads this when it is loaded. Its retries are not part of an answer.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    logger = logging.getLogger("knn_logits")
    logger.handlers = [_OneLine()]
    logger.propagate = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def prepare(threads: int | None, seed: int = 0) -> None:
    """Sets threads and seed, and silences other libraries, whose output would mix with ours."""
    import torch
    import transformers

    if threads is not None:
        torch.set_num_threads(threads)
    set_seed(seed)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def set_seed(seed: int) -> None:
    """Seeds all random generators, so that a run can be repeated."""
    import transformers

    transformers.set_seed(seed)


def read_text(text: str) -> str:
    """Returns a text given on the command line, or reads standard input for "-".

    Raises:
        ConfigError: when the text is not UTF-8.
    """
    try:
        if text == "-":
            text = sys.stdin.buffer.read().decode("utf-8")
        text.encode("utf-8")
    except UnicodeError as error:
        raise ConfigError("the text is not UTF-8: convert it first") from error
    return text


# "report.txt", "./notes.md", "C:\\texts\\a.pdf"; not "Hello." and not "U.S.A."
_NAME_OF_A_FILE = re.compile(r"\S+\.(txt|md|rst|html?|json|jsonl|csv|py|pdf|docx)", re.IGNORECASE)


def text_or_file(text: str) -> str:
    """Returns the text of a file of this name, or the given text itself; reads stdin for "-".

    Raises:
        ConfigError: when the text is not UTF-8, or the file cannot be read. A single word that
            looks like a file's name is not taken for a text.
    """
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # the text is too long for a name, or no name has its characters
        is_file = False
    if not is_file:
        if _NAME_OF_A_FILE.fullmatch(text):
            raise ConfigError(f"there is no file {text}; give an existing file, or a text")
        return read_text(text)
    try:
        return Path(text).read_text(encoding="utf-8-sig")
    except UnicodeError as error:
        raise ConfigError(f"the file {text} is not UTF-8: convert it first") from error
    except OSError as error:
        raise ConfigError(f"the file {text} cannot be read: {error.strerror}") from error


def load_model(name: str, device: str, dtype: str) -> tuple[Any, Any]:
    """Loads a causal or encoder-decoder model and its tokenizer.

    Raises:
        ModelError: when there is no model of that name. Its message has one line.
        ConfigError: when the device or the precision is unknown.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    from knn_logits.engine.precision import use_fastest_dtype

    if dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise ConfigError(f"--dtype {dtype!r} is unknown; give auto, float32, bfloat16 or float16")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"--device {device!r} is unknown; give cpu, cuda or auto") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device is cuda, but PyTorch finds no GPU; give --device cpu")
    kind = dtype if dtype == "auto" else getattr(torch, dtype)
    config = _config_of(name)
    try:
        family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        # transformers would import all of its models for a message that names each of them.
        if type(config) not in family._model_mapping and not hasattr(config, "auto_map"):
            raise ValueError(f"its type is {config.model_type!r}")
        model = family.from_pretrained(name, dtype=kind)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _no_model(name, error) from error
    try:
        loaded: Any = model
        loaded = loaded.to(where).eval()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--device {device!r} cannot be used ({reason}); give --device cpu"
        ) from error
    choice = use_fastest_dtype(loaded) if dtype == "auto" else None
    if choice is not None:
        tell(choice, style=None)
    return loaded, tokenizer


def reads_pairs(name: str) -> bool:
    """Whether a model is an encoder-decoder.

    Raises:
        ModelError: when there is no model of that name.
    """
    return bool(_config_of(name).is_encoder_decoder)


def _config_of(name: str) -> Any:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id
    from transformers import AutoConfig

    if not Path(name).exists():
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise ModelError(
                f"there is no model {name!r}: no such folder exists, and it is not a name of the "
                "Hub; give a folder that holds a model, or org/name"
            ) from error
    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _no_model(name, error) from error


def _no_model(name: str, error: Exception) -> ModelError:
    reason = one_line(str(error)).strip()
    reason = reason if len(reason) < 200 else reason[:200] + "…"
    here = "" if Path(name).exists() else "no such folder exists, and the Hub does not give it; "
    return ModelError(
        f"cannot load the model {name!r}: {here}give a causal or encoder-decoder language model, "
        f"as a Hub id or a folder ({reason})"
    )


def present(store: Datastore) -> tuple[int, int]:
    """Counts the entries and the documents of a datastore that are not removed."""
    manifest = store.manifest
    return (
        manifest.entries - len(store.removed_entries),
        manifest.documents - len(manifest.removed),
    )


def open_datastore(name: str, *, keys: bool = False) -> Datastore:
    """Opens a datastore, and shows a progress bar if it has to be fetched or read.

    Args:
        name: A folder, or "org/name" or "org/name@revision" on the Hub.
        keys: Fetch the keys as well.

    Raises:
        DatastoreError: when the folder is not a datastore, or a damaged one.
        HubError: when the datastore cannot be fetched.
    """
    from knn_logits.store.datastore import Datastore

    with Bars(quiet=True) as bars, interruptible("what arrived is kept"):
        store = Datastore.from_pretrained(name, progress=bars)
        if keys:
            store.fetch_keys(bars)
        return store


def check_trace_files(save: str | None, html: str | None) -> None:
    """Refuses files of --save and --html that cannot be written, before anything is computed.

    Raises:
        StorageError: when a file cannot be written.
    """
    from knn_logits.measure.figures import check_writable

    for path in (save, html):
        if path is not None:
            check_writable(path, folder=False)


def keep_trace(trace: Any, save: str | None, html: str | None) -> None:
    """Writes a trace to the files that --save and --html name.

    Raises:
        StorageError: when a file cannot be written.
    """
    for path, write in ((save, trace.save), (html, trace.save_html)):
        if path is None:
            continue
        try:
            write(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageError(f"{path} cannot be written ({reason}): give another file") from error
        tell(f"written: {path}", style=None)


@contextmanager
def keeping_trace(trace: Any, save: str | None, html: str | None) -> Iterator[None]:
    """Does what `keep_trace` does after the answer has been printed.

    Neither a file that cannot be written nor a pipe that was closed takes the other's work away.
    """
    try:
        yield
    finally:
        keep_trace(trace, save, html)


def print_json(content: dict[str, Any]) -> None:
    """Prints one JSON object on one line of stdout."""
    sys.stdout.write(json_line(content, sys.stdout.encoding) + "\n")
    sys.stdout.flush()


# Ctrl-C sets this. Python drops an exception that is raised while it collects garbage. The next
# report of progress then ends the job.
_interrupted = threading.Event()


def _on_interrupt(number: int, frame: Any) -> None:
    _interrupted.set()
    signal.default_int_handler(number, frame)


@contextmanager
def _noticing_interrupts() -> Iterator[None]:
    _interrupted.clear()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ends with one line and the exit status 130 when the user presses Ctrl-C."""
    try:
        with _noticing_interrupts():
            yield
    except KeyboardInterrupt:
        tell(f"stopped; {advice}", style=None)
        raise typer.Exit(130) from None


def stdout_table(table: Any) -> None:
    """Prints a table on stdout, which is part of an answer. It is never cut to a terminal."""
    lines = Console(width=200, highlight=False, color_system=None)
    with lines.capture() as held:
        lines.print(table)
    for line in held.get().rstrip("\n").splitlines():
        say(line.rstrip())


class _Steps(MofNCompleteColumn):
    """Shows the steps done of all steps, or a percentage where progress is a share."""

    def render(self, task: Task) -> Text:
        if task.total == WHOLE:
            return Text(f"{task.percentage:.1f}%", style="progress.download")
        return super().render(task)


class Bars:
    """A progress bar for each phase of a long job, on stderr.

    Args:
        quiet: Whether to print nothing at all if stderr is not a terminal. Otherwise the names of
            the phases are printed there.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Steps(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=stderr,
            disable=not stderr.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last: str | None = None

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()
        self._progress.stop()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """See `knn_logits.progress.Progress`.

        Raises:
            KeyboardInterrupt: when Ctrl-C was pressed, but Python dropped the exception.
        """
        if _interrupted.is_set():
            _interrupted.clear()
            raise KeyboardInterrupt
        if phase not in self._tasks:
            self._finish()
            self._tasks[phase] = self._progress.add_task(one_line(phase), total=total)
            self._last = phase
            if not stderr.is_terminal and not self._quiet and (total or done):
                steps = f": {total}" if total and total != WHOLE else ""
                stderr.print(one_line(phase) + steps, markup=False)
        self._progress.update(self._tasks[phase], completed=done, total=total)

    def _finish(self) -> None:
        if self._last is None:
            return
        task = next(task for task in self._progress.tasks if task.id == self._tasks[self._last])
        if task.total is None:
            self._progress.update(
                task.id, total=max(1, task.completed), completed=max(1, task.completed)
            )
