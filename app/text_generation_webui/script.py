"""The extension for text-generation-webui gives its model a memory, and shows the sources.

Copy or link this folder to `user_data/extensions/knn_logits` of the host, install `knn-logits` into
the host's environment, and start the host with `--extensions knn_logits`. The host calls the
functions of this file, and `attached.py` and `host_answer.py` beside it do the work.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

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
    "retomaton": "as the datastore says",
}

_PACKAGE = "knn_logits_extension"
NUMBERS = {"lmbda": "λ (lmbda), 0 to 1", "k": "k, neighbors", "temperature": "τ (temperature)"}


def _sibling(name: str) -> Any:
    """Imports a module of this folder. The host loads only this file, and from any folder."""
    if _PACKAGE not in sys.modules:
        sys.modules[_PACKAGE] = types.ModuleType(_PACKAGE)
        sys.modules[_PACKAGE].__path__ = [str(Path(__file__).parent)]
    return importlib.import_module(f"{_PACKAGE}.{name}")


attached = _sibling("attached")


def _tell(line: str) -> None:
    """Writes a line to the host's log."""
    from modules.logging_colors import logger

    logger.warning(line)


memory = attached.Attached(params, _tell)


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
    """Reads an answer without changing it. The host calls this with each answer."""
    del state, is_chat
    memory.written(string)
    return string


def ui() -> None:
    """Lays out the panel of the extension. Its fields have the present settings at each loading."""
    import gradio as gr

    def status_line() -> str:
        return str(memory.status(_loaded()[0]))

    def setting(name: str, value: Any) -> str:
        value = value.strip() if isinstance(value, str) else value
        if params[name] != value:
            params[name] = value
            memory.changed()
        memory.open(_loaded()[0])
        return status_line()

    with gr.Accordion("kNN memory", open=True, elem_id="knn-logits"):
        with gr.Row():
            activate = gr.Checkbox(
                value=lambda: params["activate"], label="kNN", scale=0, min_width=120
            )
            datastore = gr.Textbox(
                value=lambda: params["datastore"],
                label="Datastore",
                placeholder="a folder, or org/name on the Hub; several with commas",
                scale=3,
            )
        with gr.Row():
            boxes = {
                name: gr.Textbox(
                    value=lambda name=name: str(params[name]),
                    label=label,
                    placeholder="as the datastore says",
                    min_width=140,
                )
                for name, label in NUMBERS.items()
            }
        retomaton = gr.Radio(
            list(attached.RETOMATON),
            value=lambda: params["retomaton"],
            label="RetoMaton: follow passages",
        )
        status = gr.HTML(status_line)
        sources = gr.HTML(memory.sources_html)
        show = gr.Button("Show where the last answer comes from", size="sm")
        shown = gr.State(0)
    components = {"activate": activate, "datastore": datastore, **boxes, "retomaton": retomaton}
    for name, component in components.items():
        event = component.input if name in ("activate", "retomaton") else component.blur
        event(lambda value, name=name: setting(name, value), component, status)
        if hasattr(component, "submit"):
            component.submit(lambda value, name=name: setting(name, value), component, status)

    def news() -> tuple[str, str, int]:
        # The number comes first, since the next answer may end while the sources are looked up.
        number = memory.answers
        return status_line(), memory.sources_html(), number

    show.click(news, None, [status, sources, shown])
    _after_answers(news, [status, sources, shown])


def _after_answers(news: Any, outputs: list[Any]) -> None:
    """Shows the sources of a new answer; of the changes with each word one waits for the end."""
    import gradio as gr
    from modules import shared

    def update(seen: int) -> Any:
        memory.wait(_is_busy)
        return [gr.update()] * len(outputs) if memory.answers == seen else news()

    for name in ("display", "textbox-notebook", "output_textbox"):
        component = getattr(shared, "gradio", {}).get(name)
        if component is not None:
            component.change(
                update, outputs[-1], outputs, show_progress="hidden", trigger_mode="always_last"
            )


def _is_busy() -> bool:
    """Whether the host writes an answer. An older host does not say, and then it does not."""
    from modules import models

    return int(getattr(models, "active_generation_count", 0)) > 0
