"""The extension for text-generation-webui gives its model a memory, and shows the sources.

Copy or link this folder to `user_data/extensions/knn_logits` of the host, install `knn-logits` into
the host's environment, and start the host with `--extensions knn_logits`.
"""

from __future__ import annotations

import html
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

# The host keeps these settings in its settings.yaml, as "knn_logits-datastore" and so on. An empty
# text takes the datastore's setting.
params: dict[str, Any] = {
    "display_name": "kNN memory",
    "is_tab": False,
    "activate": True,
    "datastore": "",
    "lmbda": "",
    "k": "",
    "temperature": "",
}
NUMBERS = {
    "lmbda": ("λ (lmbda), 0 to 1", float),
    "k": ("k, neighbors", int),
    "temperature": ("τ (temperature)", float),
}
# Attributes of a model, and of the processors of this extension.
_ATTACHED, _ANSWER = "_knn_logits_attached", "_knn_logits_answer"
# Number of passages of each token, and of the latest steps that are compared with the text.
_PASSAGES, _STEPS = 3, 64
# Advice for the host's loaders that run no PyTorch model.
_LLAMA_CPP = (
    "runs llama.cpp in another process, which gives no hidden states. Run the GGUF file by "
    "`knn-logits serve FILE.gguf DATASTORE` instead of this program"
)
_OTHER_LOADER = "gives no hidden states. Load the model with the Transformers loader"
# Packages that the extension needs beside those of the host.
_PACKAGES = ("knn_logits", "knn_logits_app", "faiss", "pyarrow", "filelock", "pydantic")

# The frame tells its height, also after a click, and takes the colours of the host.
FIT = """
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


class Answer:
    """One answer of the host; as a logits processor it records its tokens and changes nothing."""

    def __init__(self, knn: Any, tokenizer: Any, start: int) -> None:
        self._knn, self._tokenizer, self._start = knn, tokenizer, start
        self._steps: dict[int, Any] = {}
        self.text = ""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Records the text so far, int64 [rows, length]."""
        self._steps[input_ids.shape[-1]] = input_ids
        return scores

    def page(self) -> str | None:
        """Returns the answer with its sources as an HTML document; None if it is not known."""
        from knn_logits import KNNLogitsError
        from knn_logits_app.views import chat_page

        # The host may still write an answer that it has given up.
        steps = sorted(dict(self._steps).items(), reverse=True)[:_STEPS]
        for whole in (whole for _, ids in steps for whole in self._readings(ids)):
            with suppress(KNNLogitsError):  # the last token of a text that was cut
                trace = self._knn.trace(whole, self._tokenizer, max_neighbors=_PASSAGES)[0]
                return str(chat_page(trace))
        return None

    def _readings(self, ids: Any) -> list[Any]:
        """Returns the tokens that the answer may have; none if the host's text has no such step.

        It has not if the step was a rejected draft, or if a stop text cut the answer before it. No
        step sees the last token, which is read from the text.
        """
        import torch

        written = self._tokenizer.decode(ids[0, self._start :], skip_special_tokens=True).lstrip()
        for text in (self.text, html.unescape(self.text)):
            if written in text:
                after = text.rpartition(written)[2] if written else text
                last = self._tokenizer(after, add_special_tokens=False)["input_ids"]
                whole = [torch.cat([ids, ids.new_tensor([last])], -1)] if len(last) == 1 else []
                return [*whole, ids] if written else whole
        return []


class OnModel(NamedTuple):
    """An attribute of a model: the processor of its answers, and the settings of its memory.

    So it goes away when the host unloads the model. The processor is never closed, since the host
    may still write an answer that it has given up; its hooks go when nothing refers to it.
    """

    key: tuple[str, ...]
    knn: Any


class Attached:
    """The memory of the model that the host runs.

    Attributes:
        answers: The number of answers that the host has written to their end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: Any = lambda: None  # of the last answer, without keeping it alive
        self._problem = self._reported = ""
        self.answers = 0

    def begin(self, model: Any) -> None:
        """Logs once, before an answer, that the loader of the model cannot have a memory."""
        self._model = lambda: None
        if params["activate"]:
            self._tell(_refusal(model))

    def add_processors(self, processors: list[Any], model: Any, tokenizer: Any, ids: Any) -> None:
        """Puts the processors of one answer before the host's. There are none if kNN is off.

        The host's own processors then read the mixture: its log-probabilities are reported, and
        words that a request forbids are not brought back by the vote. The host hands a list over
        twice if a request wants several answers, so earlier processors of this module are removed.
        """
        processors[:] = [one for one in processors if not getattr(one, _ATTACHED, False)]
        self._model = lambda: None
        on_model = self.open(model)
        if params["activate"]:
            self._tell(self._problem)
        if on_model is None:
            return
        answer = Answer(on_model.knn, tokenizer, int(ids.shape[-1]))
        setattr(_bare(model), _ANSWER, answer)
        self._model = weakref.ref(_bare(model))
        for processor in (on_model.knn, answer):
            setattr(processor, _ATTACHED, True)
        processors[:0] = [on_model.knn, answer]

    def open(self, model: Any) -> OnModel | None:
        """Attaches the memory; None if kNN is off, or for the problem that `status` says."""
        if not params["activate"]:
            return None
        with self._lock:
            self._problem = _refusal(model)
            if self._problem:
                return None
            try:
                return _attach(model)
            except Exception as error:
                lora = "" if _bare(model) is model else " (this model has a LoRA: try without it)"
                self._problem = f"kNN is off: {_reason(error)}{lora}"
                return None

    def written(self, text: str) -> None:
        """Takes an answer as it is, or in the HTML form in which the host shows it."""
        answer = self._answer()
        if answer is not None:
            answer.text = text
        self.answers += 1

    def status(self, model: Any) -> str:
        """Returns the line of the panel, as HTML."""
        on_model = self.open(model)
        if on_model is None:
            line = self._problem if params["activate"] else "kNN is off."
        else:
            from knn_logits.hosting import settings_line

            memory = on_model.knn.memory
            names = ", ".join(store.name for store in memory.stores)
            line = f"kNN is on: {names}, {settings_line(memory.config, symbols=True)}."
        return f"<p>{html.escape(line)}</p>"

    def sources_html(self) -> str:
        """Returns the last answer with its sources as a frame, or says why there is none."""
        answer = self._answer()
        if answer is None:
            return "<p>No answer was written with kNN yet.</p>"
        page = answer.page()
        if page is None:
            return "<p>The sources of this answer are not known: write another answer.</p>"
        return (
            '<iframe sandbox="allow-scripts" title="Where the words come from" '
            f'style="width:100%;height:420px;border:0" onload="{html.escape(FIT)}" '
            f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
        )

    def _answer(self) -> Answer | None:
        return getattr(self._model(), _ANSWER, None)

    def _tell(self, problem: str) -> None:
        """Writes a problem to the host's log, once."""
        if problem and problem != self._reported:
            from modules.logging_colors import logger

            logger.warning(problem)
            self._reported = problem


def _refusal(model: Any) -> str:
    """Returns why kNN cannot work now, or an empty string."""
    kind = type(_bare(model))
    # Hosts that have only llama.cpp come without transformers, which is not imported for them.
    if kind.__module__.startswith("modules."):
        reason = _LLAMA_CPP if kind.__name__ == "LlamaServer" else _OTHER_LOADER
        return f"kNN is off: the loader of this model ({kind.__name__}) {reason}"
    if not str(params["datastore"]).strip():
        return "kNN is off: name a datastore, a folder or org/name on the Hub"
    return "kNN is off: no model is loaded yet" if model is None else ""


def _attach(model: Any) -> OnModel:
    bare = _bare(model)
    adapters = str(getattr(model, "active_adapters", "")) if bare is not model else ""
    key = (adapters, *(str(params[name]).strip() for name in ("datastore", *NUMBERS)))
    attached: OnModel | None = getattr(bare, _ATTACHED, None)
    if attached is not None and attached.key == key:
        return attached
    from knn_logits import Datastore, KNNLogitsProcessor, Memory

    names = [name.strip() for name in key[1].split(",") if name.strip()]
    places = [str(Path(name).expanduser()) if name[0] == "~" else name for name in names]
    stores = [Datastore.from_pretrained(place) for place in places]
    settings = {name: _number(name, value) for name, value in zip(NUMBERS, key[2:], strict=True)}
    memory = Memory(bare, stores, threads=1, **settings)
    on_model = OnModel(key, KNNLogitsProcessor(bare, memory, candidates=5))
    setattr(bare, _ATTACHED, on_model)
    return on_model


def _bare(model: Any) -> Any:
    """Returns the model that computes. A LoRA wraps it in a model of PEFT."""
    inside = getattr(model, "get_base_model", None)
    return model if inside is None else inside()


def _number(name: str, value: str) -> Any:
    try:
        return NUMBERS[name][1](value) if value else None
    except ValueError:
        raise ValueError(
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


memory = Attached()


def _loaded() -> tuple[Any, Any]:
    """Returns the host's current model and its tokenizer."""
    from modules import shared

    return shared.model, shared.tokenizer


def state_modifier(state: dict[str, Any]) -> dict[str, Any]:
    """Logs why kNN cannot work. The host calls this before each answer, with every loader."""
    memory.begin(_loaded()[0])
    return state


def logits_processor_modifier(processor_list: Any, input_ids: Any) -> None:
    """Adds the processors. The host calls this before each answer, if the loader takes them."""
    model, tokenizer = _loaded()
    memory.add_processors(processor_list, model, tokenizer, input_ids)


def output_modifier(string: str, state: dict[str, Any], is_chat: bool = False) -> str:
    """Reads an answer without changing it. The host calls this at the end of each answer."""
    del state, is_chat
    memory.written(string)
    return string


def ui() -> None:
    """Lays out the panel of the extension. Its fields have the present settings at each loading."""
    import gradio as gr
    from modules import shared

    def status_line() -> str:
        return memory.status(_loaded()[0])

    def setting(name: str, value: Any) -> str:
        params[name] = value.strip() if isinstance(value, str) else value
        return status_line()

    def box(name: str, label: str, **look: Any) -> Any:
        return gr.Textbox(value=lambda: str(params[name]), label=label, **look)

    with gr.Accordion("kNN memory", open=True, elem_id="knn-logits"):
        activate = gr.Checkbox(value=lambda: params["activate"], label="kNN")
        place = "a folder, or org/name on the Hub; several with commas"
        boxes = {"datastore": box("datastore", "Datastore", placeholder=place)}
        with gr.Row():
            for name, (label, _) in NUMBERS.items():
                look = {"placeholder": "as the datastore says", "min_width": 140}
                boxes[name] = box(name, label, **look)
        status = gr.HTML(status_line)
        sources = gr.HTML(memory.sources_html)
        show = gr.Button("Show where the last answer comes from", size="sm")
        shown = gr.State(0)
    activate.input(lambda value: setting("activate", value), activate, status)
    for name, component in boxes.items():
        for event in (component.blur, component.submit):
            event(lambda value, name=name: setting(name, value), component, status)

    def news(seen: int | None = None) -> tuple[Any, Any, int]:
        # The number comes first, since the next answer may end while the sources are looked up.
        number = memory.answers
        if number == seen:
            return gr.update(), gr.update(), number
        return status_line(), memory.sources_html(), number

    outputs = [status, sources, shown]
    show.click(news, None, outputs)
    # The text changes with each word, and a last time after `output_modifier`.
    for name in ("display", "textbox-notebook", "output_textbox"):
        component = getattr(shared, "gradio", {}).get(name)
        if component is not None:
            component.change(
                news, shown, outputs, show_progress="hidden", trigger_mode="always_last"
            )
