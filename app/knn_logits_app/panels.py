"""What is behind a word, as HTML: documents, their passages, what else might have stood there.

Whatever comes from a corpus, a model or a visitor passes `markup.text`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from knn_logits import Source, TokenTrace, contradiction, word_sources
from knn_logits_app.markup import count, link, number, percent, text
from knn_logits_app.words import Word

_BEFORE, _AFTER = 140, 80
_SOURCE = 300
# Documents shown behind a word, and the share below which all but the first are only counted.
_SOURCES, _LEAST = 3, 0.01
_CHARTS = 8


def panel(
    word: Word,
    place: int,
    name: str,
    tokens: Sequence[TokenTrace],
    metric: str,
    *,
    opened: bool = False,
) -> str:
    chosen = [tokens[one] for one in word.tokens]
    shown = _contradiction(chosen) + _sources(chosen, metric)
    charts = [_chart(tokens[one]) for one in word.tokens[:_CHARTS] if tokens[one].candidates]
    alternatives = charts[0] if charts else "<p>Not known.</p>"
    if len(charts) > 1:
        alternatives += (
            f"<details><summary>the {len(charts) - 1} other pieces of the word</summary>"
            f"{''.join(charts[1:])}</details>"
        )
    return (
        f'<section class="kl-panel" id="{name}-{place}"{"" if opened else " hidden"} '
        'aria-label="Sources of a word">'
        f'<div class="kl-head"><h3>{text(word.text)}</h3>'
        f"<p>{_share_line(word, chosen)}</p>"
        '<button type="button" class="kl-close" aria-label="Close the sources">×</button></div>'
        f'<div class="kl-cols"><div><h4>Where it comes from</h4>{shown}</div>'
        f"<div><h4>What else might have stood here</h4>{alternatives}</div></div></section>"
    )


def _share_line(word: Word, chosen: Sequence[TokenTrace]) -> str:
    line = f"<b>{percent(word.share)}</b> of its probability comes from the memory"
    known = [one for one in chosen if one.p is not None and one.p_lm is not None]
    if known:
        first = known[0]
        assert first.p is not None
        assert first.p_lm is not None
        line += (
            f"; the model alone gave {'it' if len(chosen) == 1 else 'its beginning'} "
            f"{number(first.p_lm)}, with the memory {number(first.p)}"
        )
    return line + "."


def _contradiction(chosen: Sequence[TokenTrace]) -> str:
    """What the memory says in place of the word, where it objects."""
    rival = contradiction(chosen)
    if rival is None:
        return ""
    where = ""
    if rival.document is not None:
        where = f", <b>{text(rival.document.title or rival.document.document)}</b>"
    said = text(_shown(rival.token).strip())
    return (
        f'<p class="kl-against">The memory says <b>{said}</b> here, '
        f"with {percent(rival.p)} of its vote{where}.</p>"
    )


def _sources(chosen: Sequence[TokenTrace], metric: str) -> str:
    """The documents behind a word; the first always, others where they matter."""
    sources = word_sources(chosen, len(chosen[0].documents) or _SOURCES) if chosen else []
    shown = sources[:1] + [one for one in sources[1:_SOURCES] if one.document.share >= _LEAST]
    rest = sources[len(shown) :]
    if not shown:
        if contradiction(chosen) is not None:
            return ""
        if any(one.documents for one in chosen):
            return "<p>Its pieces come from different documents: none of them says the word.</p>"
        return "<p>No neighbor voted for it: this word is the model’s own.</p>"
    more = ""
    if rest:
        share = sum(one.document.share for one in rest)
        more = f'<p class="kl-more">{count(len(rest), "more document")}, {percent(share)}</p>'
    items = "".join(_source(one, metric) for one in shown)
    return f'<ol class="kl-sources">{items}</ol>{more}'


def _source(source: Source, metric: str) -> str:
    document, neighbor = source.document, source.neighbor
    head = (
        f'<li><div class="kl-doc"><b>{text(document.title or document.document)}</b> '
        f'<span class="kl-store">{text(document.store)}</span>{link(document.uri)}</div>'
    )
    part = f"<span>{percent(document.share)} of the word</span>"
    if neighbor is None:
        return f'{head}<div class="kl-nums">{part}</div></li>'
    marked = source.words
    space = marked[: len(marked) - len(marked.lstrip())]
    near = f"{'distance' if metric == 'l2' else 'similarity'} {number(neighbor.distance or 0.0)}"
    if neighbor.matched:
        near = f"{neighbor.matched} tokens before it are the same"
    return (
        f'{head}<blockquote dir="auto">{text(_from_a_word(neighbor.before) + space)}'
        f"<mark>{text(marked.lstrip())}</mark>{text(_to_a_word(source.after))}</blockquote>"
        f'{_read(neighbor.source)}<div class="kl-nums">{part}'
        f"<span>weight {percent(neighbor.weight)} of the vote</span>"
        f"<span>{near}</span></div></li>"
    )


def _read(source: str | None) -> str:
    """What a passage was written to, where it was."""
    if source is None:
        return ""
    shown = source if len(source) <= _SOURCE else f"{source[:_SOURCE].rpartition(' ')[0]} …"
    return f'<p class="kl-read" dir="auto"><span>source</span> {text(shown)}</p>'


def _from_a_word(before: str) -> str:
    """The text before a word, from the beginning of a word on; the passage may begin within one."""
    part = before[-_BEFORE:]
    _, space, rest = part.partition(" ")
    opens = len(before) <= _BEFORE and (not part or part[:1].isupper())
    return part if opens or not space else f"… {rest}"


def _to_a_word(after: str) -> str:
    """The text after a word, to the end of a word."""
    part = after[:_AFTER]
    rest, space, _ = part.rpartition(" ")
    closes = len(after) <= _AFTER and part.rstrip().endswith((".", "!", "?"))
    return part if closes or not space else f"{rest} …"


def _chart(token: TokenTrace) -> str:
    rows = "".join(
        f"<tr{' class=kl-chosen' if one.token == token.token else ''}>"
        f"<th scope='row'>{text(_shown(one.token))}</th>"
        f"{_bar(one.p, 'mix')}{_bar(one.p_lm, 'lm')}"
        f"{_bar(one.p_knn if token.lmbda else None, 'knn')}</tr>"
        for one in token.candidates
    )
    return (
        '<table class="kl-bars"><thead><tr><th scope="col">candidate</th>'
        '<th scope="col">p, together</th><th scope="col">p_LM, model</th>'
        '<th scope="col">p_kNN, neighbors</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _shown(token: str) -> str:
    """A token that can be seen: white space has signs."""
    bare = token.strip(" ")
    return bare.replace("\n", "⏎").replace("\t", "⇥") if bare else "␣" * max(1, len(token))


def _bar(share: float | None, kind: str) -> str:
    if share is None:
        return "<td>–</td>"
    width = f"{max(0.0, min(1.0, share)):.1%}"
    return (
        f'<td><span class="kl-bar kl-{kind}"><i style="width:{width}"></i></span>'
        f"<span>{_three(share)}</span></td>"
    )


def _three(share: float) -> str:
    """A probability with three decimals."""
    return "&lt;.001" if 1e-9 < share < 0.0005 else f"{share:.3f}"
