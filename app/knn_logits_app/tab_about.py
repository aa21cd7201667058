"""The tab that explains kNN-LM, says what it cannot do, and lists the loaded datastores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gradio as gr

from knn_logits_app import markup

if TYPE_CHECKING:
    from knn_logits import Datastore
    from knn_logits_app.layout import Controls, Server

ABOUT = """\
<div class="kl-prose">
<h3>What this is</h3>
<p>A language model predicts the next word from its weights. <b>kNN-LM</b> also looks it up. A text
becomes a <i>datastore</i>, which holds each of its words and the model’s hidden state just before
the word. While the model writes, its current state finds the k nearest states in the datastore. The
words that followed those states vote, and the vote is mixed in: p = λ p_kNN + (1 − λ) p_LM. The
model is not trained, a new text is a new folder, and each vote names the passage it came from. You
see this passage when you click a word
(<a href="https://arxiv.org/abs/1911.00172" target="_blank" rel="noopener noreferrer">Khandelwal et
al. 2020</a>).</p>
<h3>What it does not do</h3>
<ul>
<li>It brings facts and wording of a text into an answer. It does not improve open-ended prose
(<a href="https://arxiv.org/abs/2305.14625" target="_blank" rel="noopener noreferrer">Wang et al.
2023</a>).</li>
<li>Tasks that need reasoning can suffer
(<a href="https://arxiv.org/abs/2408.11815" target="_blank" rel="noopener noreferrer">Geng et al.
2024</a>).</li>
<li>A source shows which passage made a word likely. It does not make the word true.</li>
<li>Where the datastores contain nothing similar, a constant λ makes the prediction a little
worse.</li>
</ul>
<p>What you type is used to answer you and is not kept. A text you upload is kept for your page only
and deleted when you close it.</p>
</div>
"""


def build(server: Server, controls: Controls) -> None:
    """Lays the tab out."""
    del controls
    parts = [ABOUT]
    for library in server.session.libraries.values():
        parts.append('<h3 class="kl-prose">What is loaded</h3>')
        parts.append(
            f'<p class="kl-prose">Model <b>{markup.text(library.name)}</b>, '
            f"{library.weights / 1e6:,.1f} million weights.</p>"
        )
        parts += [card(name, store) for name, store in library.stores.items()]
    gr.HTML("".join(parts), apply_default_css=False)


def card(name: str, store: Datastore) -> str:
    """Returns a table of a datastore's manifest, as HTML."""
    manifest = store.manifest
    settings = manifest.settings
    recall = manifest.index.recall
    rows = {
        "text": manifest.source,
        "licence": manifest.license,
        "size": f"{manifest.documents:,} documents, {manifest.entries:,} entries",
        "built by": manifest.model.id,
        "key": manifest.key.name,
        "index": f"{manifest.index.factory}, {manifest.metric}"
        + (f", recall@{recall.at} {recall.value:.3f}" if recall else ""),
        "settings": f"λ {settings.lmbda:g}, k {settings.k:,}, τ {settings.temperature:g}"
        + (f", suffix weight {weight:.4g}" if (weight := settings.suffix_weight) != 1.0 else "")
        + (", calibrated" if settings.calibrated else ""),
    }
    shown = "".join(
        f"<tr><th scope='row'>{markup.text(key)}</th><td>{markup.text(value)}</td></tr>"
        for key, value in rows.items()
        if value
    )
    return (
        f'<div class="kl-card"><h4>{markup.text(name)}</h4><table><tbody>{shown}</tbody></table>'
        "</div>"
    )
