"""Lays the page out and connects the settings. The modules of the tabs handle their own clicks."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from knn_logits import Datastore
from knn_logits.hosting import settings_line
from knn_logits_app import page_parts, tab_chat, tab_evaluate, tab_explain, tab_generate
from knn_logits_app.drawer import connect
from knn_logits_app.page_parts import INSTANT, Controls, Server, place, setting_control, values_of
from knn_logits_app.requests import SETTINGS
from knn_logits_app.views import TITLE, asset, text
from knn_logits_app.your_text import MOST_FILES, SUFFIXES

PROMISE = "See which sentence every word came from"
_FORMULAS = (
    '<details class="kl-side"><summary title="The formulas">?</summary>'
    "<p>p = λ p_kNN + (1 − λ) p_LM</p>"
    "<p>p_kNN(y) = Σ wᵢ over those of the k nearest places that y follows; wᵢ ∝ exp(−dᵢ / τ)</p>"
    "</details>"
)


def build_page(server: Server) -> Any:
    tabs = tabs_of(server)

    def forget(request: gr.Request) -> None:
        server.visitors.forget(request.session_hash)

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 1800)) as page:
        gr.HTML(f'<h1 class="kl-title">{PROMISE}</h1>', apply_default_css=False)
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
            for one in answers or ():
                connect(server, one, drawer)
        _follow(page, controls, server)
        page.unload(forget)
    return page


def tabs_of(server: Server) -> dict[str, tuple[str, Any]]:
    """The tabs in their order: a model with a chat template chats first, others write first."""
    names, library = list(TABS), server.session.library
    if not library.chats:
        names[:2] = reversed(names[:2])
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
    library = server.session.library
    stores = gr.CheckboxGroup(
        list(library.stores),
        value=library.chosen,
        label="Documents",
        info="The memory searches these, several together.",
        elem_id="stores",
    )
    # The browser changes the boxes, so gradio must not check the values against the first boxes.
    # They are checked later, against the datastores of this visitor.
    stores.preprocess = lambda payload: payload  # type: ignore[method-assign]
    values = values_of(library.store)
    entries = sum(map(len, library.stores.values()))
    settings = {"lmbda": setting_control(SETTINGS["lmbda"], values["lmbda"])}
    page_parts.fold("More settings", "more-settings")
    with gr.Column(elem_id="more-settings", elem_classes="kl-folded"):
        for name in [name for name in SETTINGS if name not in settings]:
            useful = entries if name == "k" else None
            settings[name] = setting_control(SETTINGS[name], values[name], useful)
    reset = gr.Button("Back to the documents’ own settings", size="sm", elem_id="reset")
    about = f"{text(library.about)} " if library.about else ""
    gr.HTML(
        f'<p class="kl-side">{about}Model: <b>{text(library.name)}</b>, '
        f"{library.weights / 1e6:,.0f} million weights. It was not trained on the documents.</p>"
        f"{_FORMULAS}",
        apply_default_css=False,
    )
    controls = Controls(stores, settings)
    for event in (reset.click, stores.input):
        page_parts.own_settings(event, controls)
    return controls


def _follow(page: Any, controls: Controls, server: Server) -> None:
    """Makes the browser update the answers when a control changes, without a request."""
    everything = [*controls.lookup, controls.use]
    follow = {"inputs": everything, "js": "(...all) => { knnLogits.controls(...all); }", **INSTANT}
    known = json.dumps(
        {
            "stores": {
                title: list(values_of(store).values())
                for title, store in server.session.library.stores.items()
            },
            "names": list(SETTINGS),
            "bytes": server.session.limits.text_bytes,
            "files": MOST_FILES,
            "suffixes": list(SUFFIXES),
        }
    )
    page.load(**{**follow, "js": f"(...all) => {{ knnLogits.know({known}, ...all); }}"})
    for control in everything:
        control.change(**follow)
    # A link can carry a prompt and settings. They are filled in, and the answer is written.
    form = [controls.prompt, *controls.lookup]
    page.load(
        inputs=form, outputs=form, js="(...now) => knnLogits.fromLink(...now)", **INSTANT
    ).then(js="() => { knnLogits.runLink(); }", **INSTANT)


def _build_about(server: Server, _: Controls) -> None:
    """Explains kNN-LM, says what it cannot do, and lists the loaded datastores."""
    library = server.session.library
    parts = [asset("about.html"), '<h3 class="kl-prose">What is loaded</h3>']
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
    "evaluate": ("Evaluate", tab_evaluate.build),
    "about": ("About", _build_about),
}
