"""Lays the page out and connects the settings. The modules of the tabs handle their own clicks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr

from knn_logits_app import (
    markup,
    tab_about,
    tab_evaluate,
    tab_explain,
    tab_generate,
    tab_own,
)
from knn_logits_app.api import add_api
from knn_logits_app.bundle import ASSETS
from knn_logits_app.drawer import add_drawer, connect
from knn_logits_app.layout import INSTANT, Controls, Server, shown_settings
from knn_logits_app.library import Library
from knn_logits_app.preview import TITLE
from knn_logits_app.requests import MOST_NEIGHBORS

# The tabs by their names in app.css: the label and the module of each.
TABS = {
    "generate": ("Generate", tab_generate),
    "explain": ("Explain", tab_explain),
    "own": ("Your text", tab_own),
    "evaluate": ("Evaluate", tab_evaluate),
    "about": ("About", tab_about),
}


def build_page(server: Server) -> Any:
    """Builds the whole page."""
    session = server.session
    first = session.first

    def forget(request: gr.Request) -> None:
        server.visitors.forget(request.session_hash)

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 1800)) as page:
        gr.HTML(_title(first), apply_default_css=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                gr.HTML(
                    _tab_row(),
                    js_on_load=(ASSETS / "tabs.js").read_text(encoding="utf-8"),
                    apply_default_css=False,
                )
                panels = [gr.Column(elem_id=f"tab-{name}", elem_classes="kl-tab") for name in TABS]
            with gr.Column(scale=1, min_width=280, elem_id="side"):
                controls = _controls(server)
        drawer = add_drawer(server)
        for panel, (_, module) in zip(panels, TABS.values(), strict=True):
            with panel:
                answers = module.build(server, controls)
            if answers is not None:
                connect(server, answers, drawer)
        _follow(page, controls, session.libraries)
        page.unload(forget)
        add_api(page, server)
    return page


def _tab_row() -> str:
    """Returns the HTML of the tabs. `tabs.js` says why they are not gradio's tabs."""
    first = next(iter(TABS))
    buttons = "".join(
        f'<button type="button" role="tab" id="open-{name}" aria-controls="tab-{name}" '
        f'aria-selected="{str(name == first).lower()}" tabindex="{0 if name == first else -1}">'
        f"{markup.text(label)}</button>"
        for name, (label, _) in TABS.items()
    )
    settings = (
        '<button type="button" class="kl-settings" id="open-settings" aria-expanded="false" '
        'aria-controls="side" aria-label="Settings" title="Settings">⚙</button>'
    )
    return (
        f'<div class="kl-top"><div class="kl-tabs" role="tablist">{buttons}</div>{settings}</div>'
    )


def _title(library: Any) -> str:
    about = library.about or (
        "The model below was not trained on the datastores. With kNN it looks up every word in "
        "them while it writes."
    )
    return (
        '<header class="kl-title"><h1>A language model with a memory you can read</h1>'
        f"<p>{markup.text(about)} <b>Coloured words come from the memory; click one to see its "
        "source.</b></p></header>"
    )


def _controls(server: Server) -> Controls:
    libraries = server.session.libraries
    library = server.session.first
    settings = shown_settings(next(iter(library.stores.values())))
    gr.Markdown("### The memory", elem_classes="kl-side")
    model = gr.Dropdown(list(libraries), value=library.name, label="Model", interactive=True)
    stores = gr.CheckboxGroup(
        list(library.stores),
        value=[next(iter(library.stores))],
        label="Datastores",
        info="The memory searches these texts. Several are searched as one.",
        elem_id="stores",
    )
    # The browser changes the boxes when the model changes, so gradio must not check the values
    # against the first boxes. They are checked later, against the datastores of this visitor.
    stores.preprocess = lambda payload: payload  # type: ignore[method-assign]
    lmbda = gr.Slider(
        0, 1, settings.lmbda, step=0.01, label="λ, weight of the memory",
        info="p = λ p_kNN + (1 − λ) p_LM", elem_id="lmbda",
    )  # fmt: skip
    k = gr.Slider(
        1, MOST_NEIGHBORS, settings.k, step=1, label="k, neighbors",
        info="Places in the texts that vote on each word.", elem_id="k",
    )  # fmt: skip
    temperature = gr.Number(
        settings.temperature, label="τ, temperature", minimum=1e-6,
        info="Small: the nearest neighbor decides. Large: all neighbors count the same.",
        elem_id="temperature",
    )  # fmt: skip
    gate = gr.Checkbox(
        next(iter(library.stores)) in library.gates,
        label="Let a gate choose λ at each word",
        info="The gate was fitted for this datastore, and holds for it alone.",
        visible=any(one.gates for one in libraries.values()),
        elem_id="gate",
    )
    reset = gr.Button("Back to the datastore’s own settings", size="sm")
    controls = Controls(model, stores, lmbda, k, temperature, gate)

    settings_of = f"const [model, stores] = args; const all = {_settings(server)};" + _OWN_SETTINGS
    own_settings = f"(...args) => {{ {settings_of} return own; }}"
    reset.click(inputs=[model, stores], outputs=controls.knobs, js=own_settings, **INSTANT)
    stores.input(inputs=[model, stores], outputs=controls.knobs, js=own_settings, **INSTANT)
    model.input(
        inputs=[model],
        outputs=[stores, *controls.knobs],
        js=f"(...args) => {{ {settings_of} return [boxes, ...own]; }}",
        **INSTANT,
    )
    # A visitor who moves the slider wants to see its effect, so the gate is switched off.
    lmbda.input(outputs=[gate], js="() => false", **INSTANT)
    return controls


def _follow(page: Any, controls: Controls, libraries: Mapping[str, Library]) -> None:
    """Makes the browser update the answers when a control changes, without a request."""
    everything = [*controls.lookup, controls.use]
    told = {"inputs": everything, "js": "(...all) => { knnLogits.controls(...all); }", **INSTANT}
    gates = json.dumps({name: list(one.gates) for name, one in libraries.items()})
    page.load(**{**told, "js": f"(...all) => {{ knnLogits.gates({gates}, ...all); }}"})
    for one in everything:
        one.change(**told)
    # A link can carry a prompt and settings. They are filled in, and the answer is written.
    form = [controls.prompt, *controls.lookup[1:]]
    page.load(
        inputs=form, outputs=form, js="(...now) => knnLogits.fromLink(...now)", **INSTANT
    ).then(js="() => { knnLogits.runLink(); }", **INSTANT)


# This JavaScript computes the settings of the chosen datastores and the boxes of the chosen model.
_OWN_SETTINGS = """
  const mine = all[model] ?? Object.values(all)[0];
  const names = Object.keys(mine.stores);
  const chosen = (stores ?? [])[0];
  const first = names.includes(chosen) ? chosen : names[0];
  const gated = names.includes(chosen ?? first) && mine.gates.includes(first);
  const own = [...mine.stores[first], gated];
  const boxes = {
    __type__: "update", choices: names.map((one) => [one, one]), value: names.slice(0, 1),
  };
"""


def _settings(server: Server) -> str:
    """Returns the datastores' own settings as JSON, by model and name.

    A visitor's own text is not included. It has the settings of its model's first datastore.
    """
    known = {
        name: {
            "gates": list(library.gates),
            "stores": {
                title: [one.lmbda, one.k, one.temperature]
                for title, one in (
                    (title, shown_settings(store)) for title, store in library.stores.items()
                )
            },
        }
        for name, library in server.session.libraries.items()
    }
    return json.dumps(known)
