"""An answer as HTML: words by the neighbors' share in them, and what is behind each word.

Pure functions: answer in, text out. Whatever comes from a corpus, a model or a visitor passes
`text()`, which escapes it; links lead to http and https only. The component that shows the result
inserts it as a value of a JavaScript template, never as a part of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlsplit

from knn_logits import TokenTrace
from knn_logits_app.passages import Passage, main_passages
from knn_logits_app.sampling import Candidate
from knn_logits_app.session import Answer

# Least share, and what the legend says. Colour and the thickness of the line both tell it.
LEVELS = (
    (0.75, "75% and more"),
    (0.5, "50% to 75%"),
    (0.25, "25% to 50%"),
    (0.05, "5% to 25%"),
)
_BEFORE, _AFTER = 140, 80
_SOURCE = 300
# White space, and what joins letters and signs in many scripts.
_KEPT = "\n\t \u200c\u200d"
_PUNCTUATION = ".,;:!?)]}»”"
_CHARTS = 8


def text(value: object) -> str:
    """Anything as text in HTML, also in an attribute; control characters are left out."""
    shown = "".join(one for one in str(value) if one.isprintable() or one in _KEPT)
    return escape(shown, quote=True)


def link(uri: str | None) -> str:
    """A link to where a document can be read, where that is a web address; else nothing."""
    try:
        parts = urlsplit(uri or "")
        safe = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        safe = False
    if not safe:
        return ""
    return (
        f'<a href="{text(uri)}" target="_blank" rel="noopener noreferrer nofollow">'
        f"open<span class='kl-sr'> the document in a new tab</span></a>"
    )


def level(share: float) -> int:
    """0 for no share worth showing, up to 4."""
    return next((4 - place for place, (least, _) in enumerate(LEVELS) if share >= least), 0)


def percent(share: float) -> str:
    """A share in words: small ones are not rounded to nothing."""
    if 0.0 < share < 0.005:
        return "under 1%"
    return f"{share:.0%}"


def count(number: int, of: str) -> str:
    """How many there are of something."""
    return f"{number:,} {of}" + ("" if number == 1 else "s")


def number(value: float) -> str:
    """A probability or a distance, short."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:.1e}"


def legend() -> str:
    """What colours and lines mean."""
    shown = "".join(
        f'<li><span class="kl-w kl-l{4 - place}">{name}</span></li>'
        for place, (_, name) in reversed(list(enumerate(LEVELS)))
    )
    return (
        '<div class="kl-legend"><span>How much of a word’s probability the memory gave:</span>'
        f'<ul>{shown}</ul><span class="kl-hint">Click a word, or press Tab and Enter, to see '
        "where it comes from.</span></div>"
    )


@dataclass(frozen=True)
class Word:
    """Tokens that people read as one word.

    Attributes:
        space: White space before it.
        text: The word.
        tokens: Numbers of its tokens.
        share: The neighbors' share, the mean of its tokens'.
    """

    space: str
    text: str
    tokens: tuple[int, ...]
    share: float


def words_of(pieces: Sequence[tuple[str, float]]) -> list[Word]:
    """Pieces of text grouped into words; white space and a sentence's end divide them."""
    groups: list[list[int]] = []
    ended = False
    for place, (piece, _) in enumerate(pieces):
        ends = bool(piece) and not piece.strip(_PUNCTUATION)
        if not groups or piece[:1].isspace() or ends or ended:
            groups.append([])
        groups[-1].append(place)
        ended = ends
    found = []
    for group in groups:
        whole = "".join(pieces[place][0] for place in group)
        bare = whole.lstrip()
        share = sum(pieces[place][1] for place in group) / len(group)
        found.append(Word(whole[: len(whole) - len(bare)], bare, tuple(group), share))
    return found


def answers_html(answers: Mapping[str, Answer], *, metric: str = "l2", name: str = "word") -> str:
    """Answers side by side, and below them what is behind the words of the one with kNN.

    Args:
        answers: Under "lm" the model's own, under "knn" the one with the neighbors' votes,
            or under "text" one that was explained.
        metric: How the datastores compare keys.
        name: Begins the names of elements; another for each place of a page.
    """
    pace = "written one by one, nothing drafted or cached"
    if len(answers) > 1:
        pace += ", both texts at once"
    columns = "".join(
        _column(answers[side], side, name, "read in one pass" if side == "text" else pace)
        for side in _TITLES
        if side in answers
    )
    many = " kl-two" if len(answers) > 1 else ""
    parts = [f'<div class="kl-grid{many}">{columns}</div>']
    knn = answers.get("knn") or answers.get("text")
    if knn is not None:
        parts += [legend(), _panels(knn, name, metric)]
    return "".join(parts)


_TITLES = {"lm": "The model alone", "knn": "With its memory (kNN)", "text": "The text"}


def _column(answer: Answer, side: str, name: str, pace: str) -> str:
    words = words_of(answer.words)
    traced = answer.trace is not None
    opened = _opened(words) if traced else None
    shown = "".join(
        text(word.space)
        + _word(word, place, name, traced=traced, knn=answer.knn, opened=place == opened)
        for place, word in enumerate(words)
    )
    caret = "" if answer.done else '<span class="kl-caret" aria-hidden="true"></span>'
    return (
        f'<article class="kl-answer kl-side-{side}"><h2>{_TITLES[side]}</h2>'
        f'<div class="kl-text" dir="auto"><span class="kl-prompt">{text(answer.prompt)}</span>'
        f"{shown}{caret}</div>{_footer(answer, pace, traced=traced)}</article>"
    )


def _panels(answer: Answer, name: str, metric: str) -> str:
    if answer.trace is None:
        return ""
    words = words_of(answer.words)
    opened = _opened(words)
    tokens = answer.trace[0].tokens
    panels = "".join(
        _panel(word, place, name, tokens, answer.candidates, metric, opened=place == opened)
        for place, word in enumerate(words)
        if word.text
    )
    return f'<div class="kl-panels">{panels}</div>'


def _opened(words: Sequence[Word]) -> int | None:
    """The word whose sources are shown first: the one that owes most to the memory."""
    best = max(range(len(words)), key=lambda place: words[place].share, default=None)
    return best if best is not None and level(words[best].share) else None


def _word(
    word: Word, place: int, name: str, *, traced: bool, knn: bool, opened: bool = False
) -> str:
    if not word.text:
        return ""
    if not knn:
        return text(word.text)
    shown = f'class="kl-w kl-l{level(word.share)}"'
    if not traced:
        return f"<span {shown}>{text(word.text)}</span>"
    return (
        f'<span {shown} role="button" tabindex="0" aria-expanded="{str(opened).lower()}" '
        f'aria-controls="{name}-{place}" title="{percent(word.share)} by the memory">'
        f"{text(word.text)}</span>"
    )


def _footer(answer: Answer, pace: str, *, traced: bool) -> str:
    parts = []
    if answer.done or answer.seconds:
        speed = count(answer.tokens, "token")
        if answer.seconds > 0 and answer.tokens:
            speed += f", {answer.tokens / answer.seconds:.0f} a second: {pace}"
        parts.append(f"<span>{speed}</span>")
    if answer.stopped:
        parts.append(f"<span>ended early: {text(answer.stopped)}</span>")
    if traced and answer.trace is not None:
        content = json.dumps(answer.trace.to_dict(), ensure_ascii=True, separators=(",", ":"))
        parts.append(
            f'<button type="button" class="kl-save" data-trace="{text(content)}">'
            "Download the trace (JSON)</button>"
        )
    elif answer.knn and answer.seconds:
        parts.append("<span>looking the passages up …</span>")
    return f'<div class="kl-foot">{"".join(parts)}</div>' if parts else ""


def _panel(
    word: Word,
    place: int,
    name: str,
    tokens: Sequence[TokenTrace],
    candidates: Sequence[Sequence[Candidate]],
    metric: str,
    *,
    opened: bool = False,
) -> str:
    chosen = [tokens[one] for one in word.tokens]
    sources = main_passages(chosen)
    shown = (
        f'<ol class="kl-sources">{"".join(_source(one, metric) for one in sources)}</ol>'
        if sources
        else "<p>No neighbor voted for it: this word is the model’s own.</p>"
    )
    charts = [
        _chart(tokens[one], candidates[one])
        for one in word.tokens[:_CHARTS]
        if one < len(candidates) and candidates[one]
    ]
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


def _source(passage: Passage, metric: str) -> str:
    neighbor = passage.neighbor
    before = _from_a_word(neighbor.before)
    after = _to_a_word((neighbor.word + neighbor.after)[len(passage.marked) :])
    marked = passage.marked
    space = marked[: len(marked) - len(marked.lstrip())]
    name = "distance" if metric == "l2" else "similarity"
    return (
        f'<li><div class="kl-doc"><b>{text(neighbor.title or neighbor.document)}</b> '
        f'<span class="kl-store">{text(neighbor.store)}</span>{link(neighbor.uri)}</div>'
        f'<blockquote dir="auto">{text(before + space)}'
        f"<mark>{text(marked.lstrip())}</mark>{text(after)}</blockquote>{_read(neighbor.source)}"
        f'<div class="kl-nums"><span>{percent(passage.share)} of the word</span>'
        f"<span>weight {percent(neighbor.weight)} of the vote</span>"
        f"<span>{name} {number(neighbor.distance)}</span></div></li>"
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


def _chart(token: TokenTrace, candidates: Sequence[Candidate]) -> str:
    rows = "".join(
        f"<tr{' class=kl-chosen' if one.token == token.token else ''}>"
        f"<th scope='row'>{text(_shown(one.token))}</th>"
        f"{_bar(one.p, 'mix')}{_bar(one.p_lm, 'lm')}{_bar(one.p_knn, 'knn')}</tr>"
        for one in candidates
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


def notice(message: str, *, kind: str = "note") -> str:
    """One line for a visitor."""
    return f'<p class="kl-notice kl-{kind}" role="status">{text(message)}</p>'


def progress_html(phase: str, done: int, total: int | None) -> str:
    """How far a build is."""
    share = f' value="{min(done, total)}" max="{total}"' if total else ""
    count = f"{done:,} of {total:,}" if total else f"{done:,}"
    return (
        f'<div class="kl-progress"><span>{text(phase)}: {count}</span>'
        f'<progress aria-label="{text(phase)}"{share}></progress></div>'
    )


def plain(value: Any) -> Any:
    """Values as JSON has them, for the API."""
    return json.loads(json.dumps(value, default=str))
