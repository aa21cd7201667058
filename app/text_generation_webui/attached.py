"""Attaches a memory to the host's current model, and shows the sources of its last answer.

What belongs to a model is stored on the model itself: the memory, and the last answer. So it goes
away when the host unloads the model, and this module keeps no model alive. The module does not know
of the host's pages.
"""

from __future__ import annotations

import html
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from knn_logits_extension.host_answer import Answer

_ATTRIBUTE, _ANSWER = "_knn_logits_attached", "_knn_logits_answer"
RETOMATON = {"as the datastore says": None, "on": True, "off": False}
# Why there are no sources: nothing was written, or without kNN, or the model is gone.
_NO_SOURCES = {
    None: "No answer was written yet.",
    False: "The last answer was written without kNN.",
    True: "The sources of the last answer went with its model: write another answer.",
}
# The seconds after which the page looks again whether the host still writes, and those in which the
# host passes a whole answer on after it has written it.
_LOOK, _PASS_ON = 0.5, 2.0
# What to do where the host's loader gives no hidden states, by the class of its models.
_LOAD = "gives no hidden states. Load the model with the Transformers loader"
_INSTEAD = {
    "LlamaServer": (
        "runs llama.cpp in another process, which gives no hidden states. Run the GGUF file by "
        "`knn-logits serve FILE.gguf DATASTORE` instead of this program"
    )
}
# What the extension needs beside the host's own packages.
_PACKAGES = ("knn_logits", "knn_logits_app", "faiss", "pyarrow", "filelock")

# The frame tells its height, also after a click, and takes the colours of the host.
_FIT = """
const frame = this;
const fit = ({ source, data }) => {
  if (!frame.isConnected) window.removeEventListener("message", fit);
  else if (source === frame.contentWindow && data?.type === "iframe:height")
    frame.style.height = `${Math.min(data.height, 5000)}px`;
};
window.addEventListener("message", fit);
const dark = document.body.classList.contains("dark");
frame.contentWindow.postMessage({ type: "iframe:look", dark }, "*");
"""


class OnModel(NamedTuple):
    """What is stored on a model: the processor of its answers, with what its memory depends on.

    The processor is never closed, since the host may still write an answer that it has given up.
    Its hooks go when nothing refers to it any more.
    """

    key: tuple[Any, ...]
    knn: Any


class Attached:
    """The memory of the model that the host runs.

    Attributes:
        answers: The number of answers that the host has written to their end.
        whole: Is set while no answer is being written.
    """

    def __init__(self, params: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self._params = params
        self._say = tell
        self._lock = threading.Lock()
        self._reported: str | None = None
        self._model: Any = lambda: None
        self._problem = ""
        self.whole = threading.Event()
        self.whole.set()
        self._with_knn: bool | None = None
        self.answers = 0

    def begin(self, model: Any) -> None:
        """Logs once, before an answer, why kNN cannot work."""
        problem = self._refusal(model) if self._params["activate"] else ""
        if problem:
            self._tell(problem)
            self._without()

    def add_processors(self, processors: list[Any], model: Any, tokenizer: Any, ids: Any) -> None:
        """Puts the processors of one answer before the host's. There are none if kNN is off.

        The host's own processors then read the mixture: its log-probabilities are reported, and
        words that a request forbids are not brought back by the vote. The host hands a list over
        twice if a request wants several answers, so earlier processors of this module are removed.
        """
        processors[:] = [
            processor for processor in processors if not getattr(processor, _ATTRIBUTE, False)
        ]
        if not self._params["activate"]:
            self._without()
            return
        with self._lock:
            on_model = self._try_to_attach(model)
            self._tell(self._problem)
            if on_model is None:
                self._without()
                return
            metric = on_model.knn.memory.stores[0].manifest.metric
            answer = Answer(on_model.knn, metric, tokenizer, int(ids.shape[-1]))
            setattr(_bare(model), _ANSWER, answer)
            self._model, self._with_knn = weakref.ref(_bare(model)), True
            self.whole.clear()
            mine = [on_model.knn, answer]
            for processor in mine:
                setattr(processor, _ATTRIBUTE, True)
            processors[:0] = mine

    def open(self, model: Any) -> None:
        """Opens the datastore now, so that the panel can say at once whether it fits."""
        if self._params["activate"]:
            with self._lock:
                self._try_to_attach(model)

    def written(self, text: str) -> None:
        """Takes an answer, in the HTML form in which the host shows it."""
        if self.whole.is_set():
            return
        answer = self._answer()
        if answer is not None:
            answer.ended(text)
        self.answers += 1
        self.whole.set()

    def wait(self, is_busy: Callable[[], bool]) -> None:
        """Waits for the end of an answer that is being written."""
        while not self.whole.wait(_LOOK):
            if not is_busy():
                self.whole.wait(_PASS_ON)
                return

    def changed(self) -> None:
        """Forgets the last problem, since a setting changed. It is logged again if it remains."""
        self._reported = None
        self._problem = ""

    def status(self, model: Any) -> str:
        """Returns the line of the panel, as HTML."""
        if not self._params["activate"]:
            line = "kNN is off."
        else:
            line = self._refusal(model) or self._problem
            line = line or "The next answer opens the datastore."
            on_model = self._of(model)
            if not self._problem and on_model is not None and on_model.key == self._key(model):
                memory = on_model.knn.memory
                config = memory.config
                names = ", ".join(store.name for store in memory.stores)
                from knn_logits.hosting import settings_line

                state = "on" if config.retomaton else "off"
                settings = settings_line(config, symbols=True)
                line = f"kNN is on: {names}, {settings}, RetoMaton {state}."
        return f"<p>{html.escape(line)}</p>"

    def sources_html(self) -> str:
        """Returns the last answer with its sources as a frame, or says why there is none."""
        answer = self._answer()
        if answer is None or not answer.begun:
            return f"<p>{_NO_SOURCES[self._with_knn]}</p>"
        try:
            page = answer.page()
        except Exception as error:
            reason = html.escape(_reason(error))
            return f"<p>The sources of the last answer are not known: {reason}</p>"
        if page is None:
            return "<p>The sources of the last answer are not known: write another answer.</p>"
        return (
            '<iframe sandbox="allow-scripts" title="Where the words come from" '
            f'style="width:100%;height:420px;border:0" onload="{html.escape(_FIT)}" '
            f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
        )

    def _without(self) -> None:
        """Forgets the last answer, since the next one is written without kNN."""
        self._model, self._with_knn = lambda: None, False
        self.whole.clear()

    def _answer(self) -> Answer | None:
        answer: Answer | None = getattr(self._model(), "__dict__", {}).get(_ANSWER)
        return answer

    def _of(self, model: Any) -> OnModel | None:
        attached: OnModel | None = getattr(_bare(model), "__dict__", {}).get(_ATTRIBUTE)
        return attached

    def _key(self, model: Any) -> tuple[Any, ...]:
        """Returns what a memory depends on: the LoRAs of the model, and the settings."""
        names = ("datastore", "lmbda", "k", "temperature", "retomaton")
        adapters = str(getattr(model, "active_adapters", "")) if _bare(model) is not model else ""
        return (adapters, *(str(self._params[name]).strip() for name in names))

    def _refusal(self, model: Any) -> str:
        """Returns why kNN cannot work now, or an empty string."""
        bare = _bare(model)
        kind = type(bare)
        # The host's own wrappers may look like models of transformers, but do not run in PyTorch.
        # Hosts that have only llama.cpp come without transformers, which is not imported for them.
        if kind.__module__.startswith("modules."):
            instead = _INSTEAD.get(kind.__name__, _LOAD)
            return f"kNN is off: the loader of this model ({kind.__name__}) {instead}"
        if not str(self._params["datastore"]).strip():
            return "kNN is off: name a datastore, a folder or org/name on the Hub"
        if model is None:
            return "kNN is off: no model is loaded yet"
        from transformers import PreTrainedModel

        if not isinstance(bare, PreTrainedModel):
            return f"kNN is off: the loader of this model ({kind.__name__}) {_LOAD}"
        return ""

    def _try_to_attach(self, model: Any) -> OnModel | None:
        """Attaches the memory. If that fails, notes the reason, since the host writes on."""
        self._problem = self._refusal(model)
        if self._problem:
            return None
        try:
            return self._attach(model)
        except Exception as error:
            hint = "" if _bare(model) is model else " (this model has a LoRA: try without the LoRA)"
            self._problem = f"kNN is off: {_reason(error)}{hint}"
            return None

    def _attach(self, model: Any) -> OnModel:
        key, attached, bare = self._key(model), self._of(model), _bare(model)
        if attached is not None and attached.key == key:
            return attached
        from knn_logits import Datastore, KNNLogitsProcessor, Memory

        settings = {
            "lmbda": _number("λ", key[2], float),
            "k": _number("k", key[3], int),
            "temperature": _number("τ", key[4], float),
            "retomaton": RETOMATON.get(key[5]),
        }
        unchanged = attached is not None and attached.key[:2] == key[:2]
        # If only settings changed, the model is not checked against the datastores again.
        stores = attached.knn.memory.stores if attached is not None and unchanged else None
        stores = stores or [Datastore.from_pretrained(name) for name in _names(key[1])]
        memory = Memory(bare, stores, threads=1, check=not unchanged, **settings)
        knn = KNNLogitsProcessor(bare, memory, candidates=5)
        on_model = OnModel(key, knn)
        setattr(bare, _ATTRIBUTE, on_model)
        return on_model

    def _tell(self, problem: str) -> None:
        self._problem = problem
        if problem and problem != self._reported:
            self._say(problem)
        self._reported = problem


def _bare(model: Any) -> Any:
    """Returns the model that computes. A LoRA wraps it in a model of PEFT."""
    inside = getattr(model, "get_base_model", None)
    return model if inside is None else inside()


def _names(text: str) -> list[str]:
    """Splits the names of datastores at their commas. A folder may contain a comma itself."""
    names = [text] if Path(_at_home(text)).is_dir() else text.split(",")
    return [_at_home(name.strip()) for name in names if name.strip()]


def _at_home(name: str) -> str:
    """Replaces a leading ~ by the user's folder."""
    return str(Path(name).expanduser()) if name.startswith("~") else name


def _number(name: str, value: str, kind: Any) -> Any:
    if value == "":
        return None
    try:
        return kind(value)
    except ValueError:
        from knn_logits.errors import ConfigError

        raise ConfigError(
            f"{name} is not a number ({value!r}): leave it empty to use the datastore's setting"
        ) from None


def _reason(error: Exception) -> str:
    """Returns one line that says what went wrong, and what to do if a package is missing."""
    if isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] in _PACKAGES:
        folder = Path(__file__).resolve().parents[2]
        place = str(folder) if (folder / "pyproject.toml").is_file() else "the clone of knn-logits"
        return (
            f"{error.name} is not installed in this program's environment: run "
            f'"{sys.executable}" -m pip install "{place}" and start again'
        )
    return " ".join(str(error).split()) or type(error).__name__
