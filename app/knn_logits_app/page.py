"""The page: what stands where. What happens on a click is in the tabs' own modules."""

from __future__ import annotations

from typing import Any

import gradio as gr

from knn_logits_app import tab_about, tab_evaluate, tab_explain, tab_generate, tab_own, views
from knn_logits_app.api import add_api
from knn_logits_app.layout import LIGHT, Controls, Server
from knn_logits_app.requests import MOST_NEIGHBORS


def build_page(server: Server) -> Any:
    """The whole page."""
    session = server.session
    first = session.first

    def forget(request: gr.Request) -> None:
        server.visitors.forget(request.session_hash)

    with gr.Blocks(title="knn-logits", analytics_enabled=False, delete_cache=(600, 1800)) as page:
        gr.HTML(_title(first), apply_default_css=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320), gr.Tabs():
                tabs = [
                    (name, module, gr.Tab(name, id=name))
                    for name, module in (
                        ("Generate", tab_generate),
                        ("Explain", tab_explain),
                        ("Your text", tab_own),
                        ("Evaluate", tab_evaluate),
                        ("About", tab_about),
                    )
                ]
            with gr.Column(scale=1, min_width=280):
                controls = _controls(server)
        for _, module, tab in tabs:
            with tab:
                module.build(server, controls)
        page.unload(forget)
        add_api(page, server)
    return page


def _title(memory: Any) -> str:
    about = memory.about or (
        "The model below has read nothing of the datastores. With kNN it looks every word up in "
        "them while it writes."
    )
    return (
        '<header class="kl-title"><h1>A language model with a memory you can read</h1>'
        f"<p>{views.text(about)} <b>Coloured words come from the memory; click one to see its "
        "source.</b></p></header>"
    )


def _controls(server: Server) -> Controls:
    memories = server.session.memories
    memory = server.session.first
    settings = next(iter(memory.stores.values())).manifest.settings
    gr.Markdown("### The memory", elem_classes="kl-side")
    model = gr.Dropdown(list(memories), value=memory.name, label="Model", interactive=True)
    stores = gr.CheckboxGroup(
        list(memory.stores),
        value=[next(iter(memory.stores))],
        label="Datastores",
        info="Texts to look things up in. Several are one memory.",
    )
    lmbda = gr.Slider(
        0, 1, settings.lmbda, step=0.01, label="λ, weight of the memory",
        info="p = λ p_kNN + (1 − λ) p_LM",
    )  # fmt: skip
    k = gr.Slider(
        1, MOST_NEIGHBORS, settings.k, step=1, label="k, neighbors",
        info="Places in the texts that vote on each word.",
    )  # fmt: skip
    temperature = gr.Number(
        settings.temperature, label="τ, temperature", minimum=1e-6,
        info="Small: the nearest neighbor decides. Large: all count alike.",
    )  # fmt: skip
    gate = gr.Checkbox(
        bool(memory.gates),
        label="Let a gate choose λ at each word",
        info="It was fitted for one datastore alone; with several, the slider holds.",
        visible=any(one.gates for one in memories.values()),
        elem_id="gate",
    )
    reset = gr.Button("Back to the datastore’s own settings", size="sm")
    controls = Controls(model, stores, lmbda, k, temperature, gate)

    def own_settings(request: gr.Request, name: Any, chosen: Any) -> list[Any]:
        found = server.session.memories.get(name, memory)
        mine = server.visitors.stores(request.session_hash)
        known = {**found.stores, **mine}
        names = [one for one in chosen or [] if isinstance(one, str) and one in known]
        one = known[names[0]] if names else next(iter(found.stores.values()))
        own = one.manifest.settings
        return [own.lmbda, own.k, own.temperature, bool(found.gates)]

    def choose_model(request: gr.Request, name: Any) -> list[Any]:
        found = server.session.memories.get(name, memory)
        chosen = [next(iter(found.stores))]
        return [
            gr.CheckboxGroup(choices=list(found.stores), value=chosen),
            *own_settings(request, name, chosen),
        ]

    knobs = [lmbda, k, temperature, gate]
    reset.click(own_settings, [model, stores], knobs, **LIGHT)
    stores.input(own_settings, [model, stores], knobs, **LIGHT)
    model.input(choose_model, [model], [stores, *knobs], **LIGHT)
    # Who moves the slider wants to see what it does.
    lmbda.input(lambda: False, None, [gate], **LIGHT)
    return controls
