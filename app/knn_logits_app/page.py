"""Lays the page out and connects the settings. The modules of the tabs handle their own clicks."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from knn_logits import Datastore, settings_line
from knn_logits_app import tab_chat, tab_evaluate, tab_explain, tab_generate, tab_text
from knn_logits_app.api import add_api
from knn_logits_app.bundle import TITLE, asset
from knn_logits_app.drawer import connect
from knn_logits_app.library import Library
from knn_logits_app.page_parts import INSTANT, Controls, Server, place, setting_control, values_of
from knn_logits_app.requests import SETTINGS
from knn_logits_app.views import text

ABOUT = (
    "The model below was not trained on the datastores. With kNN it looks up every word in them "
    "while it writes."
)
# What the first tab shows.
_SHOWN = {
    "chat": "An answer is quoted from the documents; click its source to see the passage.",
    "generate": "Coloured words come from the memory; click one to see its source.",
}


def build_page(server: Server) -> Any:
    library, tabs = server.session.first, tabs_of(server)

    def forget(request: gr.Request) -> None:
        server.visitors.forget(request.session_hash)

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 1800)) as page:
        gr.HTML(
            '<header class="kl-title"><h1>A language model with a memory you can read</h1>'
            f"<p>{text(library.about or ABOUT)} "
            f"<b>{_SHOWN[next(iter(tabs))]}</b></p></header>",
            apply_default_css=False,
        )
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                gr.HTML(_tab_row(tabs), js_on_load=asset("tabs.js"), apply_default_css=False)
                panels = [gr.Column(elem_id=f"tab-{name}", elem_classes="kl-tab") for name in tabs]
            with gr.Column(scale=1, min_width=280, elem_id="side"):
                controls = _controls(server)
        js = "knnLogits.drawer(element, props, watch);"
        drawer = place(js, kind="kl-drawer-out", elem_id="drawer")
        for panel, (_, build) in zip(panels, tabs.values(), strict=True):
            with panel:
                answers = build(server, controls)
            if answers is not None:
                connect(server, answers, drawer)
        _follow(page, controls, server)
        page.unload(forget)
        add_api(page, server)
    return page


def tabs_of(server: Server) -> dict[str, tuple[str, Any]]:
    """The tabs in their order: a model with a chat template chats first, others write first."""
    names = list(TABS)
    if not server.session.first.chats:
        names[:2] = reversed(names[:2])
    if all(library.reader.sources for library in server.session.libraries.values()):
        names.remove("chat")
    return {name: TABS[name] for name in names}


def _tab_row(tabs: dict[str, tuple[str, Any]]) -> str:
    """Returns the HTML of the tabs. `tabs.js` says why they are not gradio's tabs."""
    first = next(iter(tabs))
    buttons = "".join(
        f'<button type="button" role="tab" id="open-{name}" aria-controls="tab-{name}" '
        f'aria-selected="{str(name == first).lower()}" tabindex="{0 if name == first else -1}">'
        f"{text(label)}</button>"
        for name, (label, _) in tabs.items()
    )
    settings = (
        '<button type="button" class="kl-settings" id="open-settings" aria-expanded="false" '
        'aria-controls="side" aria-label="Settings" title="Settings">⚙</button>'
    )
    return (
        f'<div class="kl-top"><div class="kl-tabs" role="tablist">{buttons}</div>{settings}</div>'
    )


def _controls(server: Server) -> Controls:
    libraries, library = server.session.libraries, server.session.first
    gr.Markdown("### The memory", elem_classes="kl-side")
    model = gr.Dropdown(list(libraries), value=library.name, label="Model", interactive=True)
    stores = gr.CheckboxGroup(
        list(library.stores),
        value=library.chosen,
        label="Datastores",
        info="The memory searches these texts, several together.",
        elem_id="stores",
    )
    # The browser changes the boxes when the model changes, so gradio must not check the values
    # against the first boxes. They are checked later, against the datastores of this visitor.
    stores.preprocess = lambda payload: payload  # type: ignore[method-assign]
    values = values_of(library.store)
    entries = max(sum(map(len, each.stores.values())) for each in libraries.values())
    settings = {
        name: setting_control(declared, values[name], entries if name == "k" else None)
        for name, declared in SETTINGS.items()
    }
    reset = gr.Button("Back to the datastore’s own settings", size="sm", elem_id="reset")
    controls = Controls(model, stores, settings)

    sliders = list(settings.values())
    to_stores = {"inputs": [model, stores], "outputs": sliders, **INSTANT}
    for event in (reset.click, stores.input):
        event(js="(...chosen) => knnLogits.own(...chosen)", **to_stores)
    model.input(
        inputs=[model],
        outputs=[stores, *sliders],
        js="(model) => knnLogits.ownOfModel(model)",
        **INSTANT,
    )
    return controls


def _follow(page: Any, controls: Controls, server: Server) -> None:
    """Makes the browser update the answers when a control changes, without a request."""
    everything = [*controls.lookup, controls.use]
    follow = {"inputs": everything, "js": "(...all) => { knnLogits.controls(...all); }", **INSTANT}
    libraries = {name: _library_settings(each) for name, each in server.session.libraries.items()}
    names = json.dumps(list(SETTINGS))
    start = f"(...all) => {{ knnLogits.know({json.dumps(libraries)}, {names}, ...all); }}"
    page.load(**{**follow, "js": start})
    for control in everything:
        control.change(**follow)
    # A link can carry a prompt and settings. They are filled in, and the answer is written.
    form = [controls.prompt, *controls.lookup[1:]]
    page.load(
        inputs=form, outputs=form, js=f"(...now) => knnLogits.fromLink({names}, ...now)", **INSTANT
    ).then(js="() => { knnLogits.runLink(); }", **INSTANT)


def _library_settings(library: Library) -> dict[str, Any]:
    """What the browser knows of a model's datastores, to set the controls by itself."""
    return {
        "chosen": library.chosen,
        "stores": {
            title: list(values_of(store).values()) for title, store in library.stores.items()
        },
    }


def _build_about(server: Server, _: Controls) -> None:
    """Explains kNN-LM, says what it cannot do, and lists the loaded datastores."""
    parts = [asset("about.html")]
    for library in server.session.libraries.values():
        parts.append(
            '<h3 class="kl-prose">What is loaded</h3>'
            f'<p class="kl-prose">Model <b>{text(library.name)}</b>, '
            f"{library.weights / 1e6:,.1f} million weights.</p>"
        )
        parts += [card(name, store) for name, store in library.stores.items()]
    gr.HTML("".join(parts), apply_default_css=False)


def card(name: str, store: Datastore) -> str:
    """Returns a table of a datastore's manifest, as HTML."""
    manifest = store.manifest
    settings, recall = manifest.settings, manifest.index.recall
    rows = {
        "text": manifest.source,
        "licence": manifest.license,
        "size": f"{manifest.documents:,} documents, {manifest.entries:,} entries",
        "built by": manifest.model.id,
        "key": manifest.key.name,
        "index": f"{manifest.index.factory}, {manifest.metric}"
        + (f", recall@{recall.at} {recall.value:.3f}" if recall else ""),
        "settings": settings_line(settings, symbols=True)
        + (", calibrated" if settings.calibrated else ""),
    }
    shown = "".join(
        f"<tr><th scope='row'>{text(key)}</th><td>{text(value)}</td></tr>"
        for key, value in rows.items()
        if value
    )
    return f'<div class="kl-card"><h4>{text(name)}</h4><table><tbody>{shown}</tbody></table></div>'


# The tabs by their names in app.css: the label of each, and what lays it out.
TABS: dict[str, tuple[str, Any]] = {
    "chat": ("Chat", tab_chat.build),
    "generate": ("Generate", tab_generate.build),
    "explain": ("Explain", tab_explain.build),
    "own": ("Your text", tab_text.build),
    "evaluate": ("Evaluate", tab_evaluate.build),
    "about": ("About", _build_about),
}
