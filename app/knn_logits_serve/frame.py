"""An answer as an HTML document of its own: coloured words, and the passages behind each.

It loads nothing from anywhere, and works wherever a host draws a page of its own inside a frame.
Whatever comes from a corpus or a model is escaped by the page's `text()`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from knn_logits import SequenceTrace, contradiction
from knn_logits_app.markup import level, percent, text
from knn_logits_app.panels import panel
from knn_logits_app.views import legend
from knn_logits_app.words import Word, words_of

# Words whose sources a frame holds: a host keeps it with the chat.
_WORDS = 250

_STYLE = """
:root { --font: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  --body-text-color: var(--kl-ink); }
body { margin: 0; padding: 10px 12px; font: 14px/1.5 var(--font); background: var(--kl-card);
  color: var(--kl-ink); border: 1px solid var(--kl-edge); border-radius: 10px; }
.kl-text { font-size: 1.05rem; line-height: 1.75; }
.kl-panel { margin-top: 8px; }
.kl-more { font-size: .82rem; }
/* A chat is narrow: what is behind a word stands below one another, and a table scrolls. */
.kl-cols { grid-template-columns: minmax(0, 1fr); }
.kl-bars { display: block; overflow-x: auto; }
"""

_SCRIPT = """
(function () {
  function told() {
    var height = document.documentElement.getBoundingClientRect().height;
    parent.postMessage({type: 'iframe:height', height: Math.ceil(height) + 4}, '*');
  }
  function show(word) {
    document.querySelectorAll('.kl-w[role=button]').forEach(function (one) {
      var open = one === word && one.getAttribute('aria-expanded') !== 'true';
      one.setAttribute('aria-expanded', open);
      document.getElementById(one.getAttribute('aria-controls')).hidden = !open;
    });
    told();
  }
  document.addEventListener('click', function (event) {
    var word = event.target.closest('.kl-w[role=button]');
    if (word) { show(word); }
    if (event.target.closest('.kl-close')) { show(null); }
  });
  document.addEventListener('keydown', function (event) {
    var word = event.target.closest && event.target.closest('.kl-w[role=button]');
    if (word && (event.key === 'Enter' || event.key === ' ')) {
      event.preventDefault(); show(word);
    }
    if (event.key === 'Escape') { show(null); }
  });
  document.addEventListener('toggle', told, true);
  window.addEventListener('load', told);
  window.addEventListener('resize', told);
  told();
})();
"""


def frame(sequence: SequenceTrace, metric: str = "l2") -> str:
    """The document.

    Args:
        sequence: The answer.
        metric: How the datastores compare keys.
    """
    tokens = sequence.tokens[:]
    words = words_of([(one.token, one.influence) for one in tokens])
    shown, panels = [], []
    for place, word in enumerate(words):
        chosen = [tokens[one] for one in word.tokens]
        against = contradiction(chosen) is not None
        behind = bool(word.text) and place < _WORDS and any(one.documents for one in chosen)
        shown.append(text(word.space) + _word(word, place, behind=behind, against=against))
        if behind:
            panels.append(panel(word, place, "word", tokens, metric))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Where the words come from</title><style>{_css()}{_STYLE}</style></head><body>"
        f'<div class="kl-text" dir="auto">{"".join(shown)}</div>{legend()}{"".join(panels)}'
        f"<script>{_SCRIPT}</script></body></html>"
    )


def _word(word: Word, place: int, *, behind: bool, against: bool) -> str:
    if not word.text:
        return ""
    kind = f'class="kl-w kl-l{level(word.share)}{" kl-not" if against else ""}"'
    if not behind:
        return f"<span {kind}>{text(word.text)}</span>"
    return (
        f'<span {kind} role="button" tabindex="0" aria-expanded="false" '
        f'aria-controls="word-{place}" title="{percent(word.share)} by the memory">'
        f"{text(word.text)}</span>"
    )


@cache
def _css() -> str:
    """The page's style; its dark colours hold where the visitor's system is dark."""
    whole = (
        files("knn_logits_app").joinpath("assets").joinpath("app.css").read_text(encoding="utf-8")
    )
    dark = whole.partition(".dark {")[2].partition("}")[0]
    return f"{whole}\n@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}\n"
