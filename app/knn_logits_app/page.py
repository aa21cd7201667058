"""Lays the page out and connects the settings. The modules of the tabs handle their own clicks."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from knn_logits import Datastore
from knn_logits_app import given_text, page_parts, tab_chat, tab_generate
from knn_logits_app.drawer import connect
from knn_logits_app.page_parts import INSTANT, Controls, Server, place, setting_control, values_of
from knn_logits_app.requests import SETTINGS
from knn_logits_app.views import TITLE, text
from knn_logits_app.your_text import SUFFIXES

PROMISE = "See which sentence every word came from"
# The text behind the "?" at the side, before the list of documents.
_ABOUT = (
    "<p>p = λ p_kNN + (1 − λ) p_LM: together = strength × memory + (1 − strength) × model</p>"
    "<p>p_kNN(y) = Σ wᵢ over those of the k nearest places that y follows; wᵢ ∝ exp(−dᵢ / τ)</p>"
    "<p>The memory brings facts and wording of the documents into an answer. It does not improve "
    "prose (<a href='https://arxiv.org/abs/2305.14625' target='_blank' rel='noopener noreferrer'>"
    "Wang et al. 2023</a>) or reasoning (<a href='https://arxiv.org/abs/2408.11815' "
    "target='_blank' rel='noopener noreferrer'>Geng et al. 2024</a>). A source shows which passage "
    "made a word likely. It does not make the word true.</p>"
    "<p>What you type is used to answer you and is not kept. A text you upload is kept for your "
    "page only and deleted when you close it.</p>"
)


def build_page(server: Server) -> Any:
    names = list(TABS)
    if not server.session.library.chats:  # such a model writes first
        names[:2] = reversed(names[:2])
    tabs = {name: TABS[name] for name in names}

    def forget(request: gr.Request) -> None:
        server.visitors.forget(request.session_hash)

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 1800)) as page:
        gr.HTML(f'<h1 class="kl-title">{PROMISE}</h1>', apply_default_css=False)
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                gr.HTML(_tab_row(tabs), apply_default_css=False)
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


def _tab_row(tabs: dict[str, tuple[str, Any]]) -> str:
    """Returns the HTML of the tabs. `page.js` says why they are not gradio's tabs."""
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
    names = list(library.stores)
    stores = page_parts.unchecked(  # they are checked against the datastores of this visitor
        gr.CheckboxGroup(names, value=library.chosen, label="Documents", elem_id="stores")
    )
    bare = [name for name, store in library.stores.items() if store.gate_arrays is None]
    strength = gr.Radio(
        [("automatic", page_parts.OWN_SETTINGS), ("fixed", page_parts.FIXED_SETTINGS)],
        value=page_parts.OWN_SETTINGS,
        label="Memory strength (λ)",
        info=f"Not calibrated, λ is the same for all words: {', '.join(bare)}" if bare else None,
        elem_id="strength",
    )
    values = values_of(library.store)
    with gr.Column(elem_id="fixed"):
        settings = {name: setting_control(SETTINGS[name], values[name]) for name in SETTINGS}
    gr.HTML(
        f'<p class="kl-side">Model: <b>{text(library.name)}</b>. Its weights are '
        "unchanged: it searches the documents while it writes.</p>"
        f"<details class='kl-side'><summary title='About the memory'>?</summary>{_ABOUT}"
        f"{''.join(map(_line, library.stores.items()))}</details>",
        apply_default_css=False,
    )
    return Controls(stores, strength, settings, tab_generate.first_answer(server))


def _line(named: tuple[str, Datastore]) -> str:
    """Describes a datastore in a paragraph of HTML."""
    name, manifest = named[0], named[1].manifest
    about = [f"{manifest.documents:,} documents, {manifest.entries:,} entries"]
    about += [part for part in (manifest.source, manifest.license) if part]
    return f"<p><b>{text(name)}</b>: {text(', '.join(about))}</p>"


def _follow(page: Any, controls: Controls, server: Server) -> None:
    """Makes the browser update the answers when a control changes, without a request."""
    follow = {
        "inputs": controls.lookup,
        "js": "(...all) => { knnLogits.controls(...all); }",
        **INSTANT,
    }
    known = json.dumps(
        {
            "names": list(SETTINGS),
            "stores": list(server.session.library.stores),
            "bytes": server.session.limits.text_bytes,
            "suffixes": list(SUFFIXES),
        }
    )
    page.load(**{**follow, "js": f"(...all) => {{ knnLogits.know({known}, ...all); }}"})
    for control in controls.lookup:
        control.change(**follow)
    # A link can carry a prompt and settings. They are filled in, and the answer is written.
    form = [controls.prompt, *controls.lookup]
    page.load(
        inputs=form, outputs=form, js="(...now) => knnLogits.fromLink(...now)", **INSTANT
    ).then(js="() => { knnLogits.runLink(); }", **INSTANT)


# The tabs by their names in app.css: the label of each, and what lays it out.
TABS: dict[str, tuple[str, Any]] = {
    "chat": ("Chat", tab_chat.build),
    "generate": ("Generate", tab_generate.build),
    "explain": ("Explain", given_text.build_explain),
    "evaluate": ("Evaluate", given_text.build_evaluate),
}
