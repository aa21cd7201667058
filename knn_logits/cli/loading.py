"""Opens what a command works on: the model on its device, datastores, and texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from knn_logits.cli.bars import Bars
from knn_logits.cli.options import Without
from knn_logits.cli.terminal import doing, tell
from knn_logits.corpus.documents import with_line_feeds
from knn_logits.corpus.parsers import looks_like_a_file
from knn_logits.errors import ConfigError, ModelError
from knn_logits.printable import one_line
from knn_logits.settings.config import MOST_SEED, MOST_THREADS
from knn_logits.settings.declaration import setting

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore

LOADING = "loading the model"


@dataclass(frozen=True)
class RunOptions:
    """How a command runs: on which device and with how many threads."""

    device: str = setting("auto", "Device of the model: cpu, cuda, cuda:1, mps or auto.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "Precision of the model; by default that of the datastore."
    )
    threads: int | None = setting(
        None, "Number of CPU threads; all by default.", least=1, most=MOST_THREADS
    )
    seed: int = setting(0, "Random seed.", least=0, most=MOST_SEED)

    def prepare(self) -> None:
        prepare(self.threads, self.seed)

    def load(self, name: str, folder: Path | str | None = None) -> tuple[Any, Any]:
        """Sets threads and seed, and loads a causal or encoder-decoder model and its tokenizer.

        Unless `dtype` is given, the model runs in the precision in which the datastore in `folder`
        was built, or in float32 where the processor emulates that. A job goes on in its own.
        """
        doing(LOADING)
        self.prepare()
        return _load_model(name, self.device, self.dtype, folder)


# Those of commands without random choices, without both, and of commands without a model.
Run = Annotated[RunOptions, Without(("seed",))]
ModelRun = Annotated[RunOptions, Without(("threads", "seed"))]
Threads = Annotated[RunOptions, Without(("device", "dtype", "seed"))]
SeededThreads = Annotated[RunOptions, Without(("device", "dtype"))]


def prepare(threads: int | None = None, seed: int = 0) -> None:
    """Sets threads and seed, and silences other libraries, whose output would mix with ours."""
    import torch
    import transformers

    if threads is not None:
        torch.set_num_threads(threads)
        from knn_logits.index.faiss_library import faiss_module

        # FAISS has a number of its own, which holds for the threads that this one starts.
        faiss_module().omp_set_num_threads(threads)
    transformers.set_seed(seed)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def read_text(text: str) -> str:
    """The text itself, or standard input for "-"."""
    try:
        if text == "-":
            text = with_line_feeds(sys.stdin.buffer.read().decode("utf-8"))
        text.encode("utf-8")
    except UnicodeError as error:
        raise ConfigError("the text is not valid UTF-8: convert it first") from error
    return text


def text_or_file(text: str) -> str:
    """The text of a file of this name, or the text itself; reads stdin for "-"."""
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # the text is too long for a name, or no name has its characters
        is_file = False
    if not is_file:
        if looks_like_a_file(text):
            raise ConfigError(f"there is no file {text}; pass an existing file, or a text")
        return read_text(text)
    try:
        return Path(text).read_text(encoding="utf-8-sig")
    except UnicodeError as error:
        raise ConfigError(f"the file {text} is not valid UTF-8: convert it first") from error


def _dtype_of(folder: Path, unfinished: str | None, config: Any) -> str:
    from knn_logits.store.layout import MANIFEST
    from knn_logits.store.manifest import read_manifest

    precision, of = unfinished, "the unfinished job"
    if precision is None and (folder / MANIFEST).exists():
        precision, of = read_manifest(folder).model.dtype, "the datastore"
    if precision not in ("float32", "bfloat16", "float16"):
        return "auto"
    if precision != str(config.dtype).removeprefix("torch."):
        tell(f"the model runs in {precision}, as in {of}", style=None)
    return precision


def _load_model(name: str, device: str, dtype: str, folder: Path | str | None) -> tuple[Any, Any]:
    from knn_logits.engine.model_loading import gguf_file, open_gguf

    file = gguf_file(name)
    if file is not None:
        if dtype not in ("auto", "float32"):
            raise ConfigError(f"a GGUF file has its own precision: remove --dtype {dtype}")
        return open_gguf(file)
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    from knn_logits.engine.forward import use_fastest_dtype
    from knn_logits.store.job import unfinished_precision

    config = _config_of(name)
    unfinished = unfinished_precision(Path(folder)) if folder is not None else None
    chooses = dtype == "auto" and unfinished is None
    if dtype == "auto" and folder is not None:
        dtype = _dtype_of(Path(folder), unfinished, config)
    with _reading(name):
        family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        # transformers would import all of its models for a message that names each of them.
        if type(config) not in family._model_mapping and not hasattr(config, "auto_map"):
            raise ValueError(f"its type is {config.model_type!r}")
        precision = dtype if dtype == "auto" else getattr(torch, dtype)
        model: Any = family.from_pretrained(name, dtype=precision)
        tokenizer = AutoTokenizer.from_pretrained(name)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = model.to(device).eval()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--device {device!r} cannot be used ({reason}); use --device cpu"
        ) from error
    choice = use_fastest_dtype(model) if chooses else None
    if choice is not None:
        tell(choice, style=None)
    return model, tokenizer


def load_tokenizer(name: str) -> Any:
    """Loads a model's tokenizer alone; `ModelError` when there is no such model."""
    from knn_logits.engine.model_loading import gguf_file, open_gguf

    file = gguf_file(name)
    if file is not None:
        return open_gguf(file)[1]
    from transformers import AutoTokenizer

    _config_of(name)
    with _reading(name):
        return AutoTokenizer.from_pretrained(name)


def reads_pairs(name: str) -> bool:
    from knn_logits.engine.model_loading import gguf_file

    doing(LOADING)
    return gguf_file(name) is None and bool(_config_of(name).is_encoder_decoder)


def _config_of(name: str) -> Any:
    from transformers import AutoConfig

    with _reading(name):
        return AutoConfig.from_pretrained(name)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = one_line(str(error)).strip()
        nowhere = "" if Path(name).exists() else "there is no such folder or model on the Hub; "
        raise ModelError(
            f"cannot load the model {name!r}: {nowhere}pass a causal or encoder-decoder language "
            f"model, as a Hub id or a folder ({reason[:200]})"
        ) from error


def figures_of(store: Datastore) -> dict[str, Any]:
    """The figures of a datastore for JSON, without removed documents."""
    manifest, index = store.manifest, store.manifest.index
    return {
        "store": str(store.folder),
        "entries": manifest.entries - len(store.removed_entries),
        "documents": manifest.documents - len(manifest.removed),
        "bytes": size_of(store),
        "index": index.factory,
        "nprobe": index.nprobe,
        "recall": index.recall.value if index.recall else {"exact": 1.0}.get(index.factory),
    }


def index_words(store: Datastore) -> str:
    """The index, and the share of true neighbors that it finds, if it was measured."""
    index = store.manifest.index
    recall = f", recall@{index.recall.at} {index.recall.value:.3f}" if index.recall else ""
    return f"index {index.factory}{recall}"


def size_of(store: Datastore) -> int:
    return sum(record.bytes for record in store.manifest.files)


def folder_of(name: str) -> Path:
    """The folder of a datastore that may be damaged, and so is not opened if it is here."""
    from knn_logits.store.hub_client import hub_name

    return Path(name) if hub_name(name) is None else open_datastore(name).folder


def open_datastore(name: str, *, keys: bool = False) -> Datastore:
    """Opens a datastore, and shows a progress bar if it has to be fetched or read."""
    with Bars("downloaded files are kept", transient=True) as bars:
        bars("opening the datastore", 0, None)
        from knn_logits.store.datastore import Datastore

        store = Datastore.from_pretrained(name, progress=bars)
        if keys:
            store.fetch_keys(bars)
        return store
