"""The extension for text-generation-webui gives its model a memory, and shows the sources.

Copy or link this folder to `user_data/extensions/knn_logits` of the host, install `knn-logits` into
the host's environment, and start the host with `--extensions knn_logits`. The host calls the
functions of this file, and `attached.py` beside it does the work.
"""

from __future__ import annotations

import importlib.util
import sys
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

RETOMATON = {"as the datastore says": None, "on": True, "off": False}


def _beside(name: str) -> Any:
    """Imports a module of this folder. The host loads only this file, and from any folder."""
    full = f"knn_logits_extension_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


attached = _beside("attached")


def _tell(line: str) -> None:
    """Writes a line to the host's log."""
    from modules.logging_colors import logger

    logger.warning(line)


_memory = attached.Attached(params, _tell)


def _loaded() -> tuple[Any, Any]:
    """Returns the host's current model and its tokenizer."""
    from modules import shared

    return shared.model, shared.tokenizer


def state_modifier(state: dict[str, Any]) -> dict[str, Any]:
    """Logs why kNN cannot work. The host calls this before each answer, with every loader."""
    _memory.begin(*_loaded())
    return state


def logits_processor_modifier(processor_list: Any, input_ids: Any) -> None:
    """Adds the processors. The host calls this before each answer, if the loader takes them."""
    model, tokenizer = _loaded()
    processor_list.extend(_memory.processors(model, tokenizer, input_ids))


def output_modifier(string: str, state: dict[str, Any], is_chat: bool = False) -> str:
    """Reads an answer without changing it. The host calls this with each answer."""
    del state, is_chat
    _memory.written(string)
    return string


def ui() -> None:
    """Lays out the panel of the extension."""
    import gradio as gr

    def setting(name: str, value: Any) -> str:
        params[name] = value.strip() if isinstance(value, str) else value
        _memory.changed()
        return _memory.status(*_loaded())

    with gr.Accordion("kNN memory", open=True, elem_id="knn-logits"):
        with gr.Row():
            activate = gr.Checkbox(value=params["activate"], label="kNN")
            datastore = gr.Textbox(
                value=params["datastore"],
                label="Datastore",
                placeholder="a folder, or org/name on the Hub; several with commas",
                scale=3,
            )
        with gr.Row():
            boxes = {
                "lmbda": gr.Textbox(value=str(params["lmbda"]), label="λ (lmbda), 0 to 1"),
                "k": gr.Textbox(value=str(params["k"]), label="k, neighbors"),
                "temperature": gr.Textbox(
                    value=str(params["temperature"]), label="τ (temperature)"
                ),
            }
            retomaton = gr.Radio(
                list(RETOMATON), value=params["retomaton"], label="RetoMaton: follow passages"
            )
        status = gr.HTML(_memory.status(*_loaded()))
        show = gr.Button("Show where the last answer comes from")
        sources = gr.HTML()
    named = {"activate": activate, "datastore": datastore, **boxes, "retomaton": retomaton}
    for name, component in named.items():
        event = component.change if name in ("activate", "retomaton") else component.blur
        event(lambda value, name=name: setting(name, value), component, status)
        if hasattr(component, "submit"):
            component.submit(lambda value, name=name: setting(name, value), component, status)
    show.click(lambda: _memory.sources_html(), None, sources)
    _after_answers(lambda: (_memory.status(*_loaded()), _memory.sources_html()), [status, sources])


def _after_answers(update: Any, outputs: list[Any]) -> None:
    """Updates the sources when the host's chat or notebook changes, if the host has them."""
    from modules import shared

    for name in ("display", "textbox-notebook"):
        component = getattr(shared, "gradio", {}).get(name)
        if component is not None:
            component.change(update, None, outputs, show_progress="hidden")
