"""An answer as HTML: words by the neighbors' share in them, and what is behind each word.

Pure functions: answer in, text out. Whatever comes from a corpus, a model or a visitor passes
`text()`, which escapes it; links lead to http and https only. The component that shows the result
inserts it as a value of a JavaScript template, never as a part of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from knn_logits import contradiction
from knn_logits_app.markup import LEVELS, count, level, percent, text
from knn_logits_app.panels import panel
from knn_logits_app.session import Answer
from knn_logits_app.words import Word, words_of


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


def answers_html(answers: Mapping[str, Answer], *, metric: str = "l2", name: str = "word") -> str:
    """Answers side by side, and below them what is behind the words of the one with kNN.

    Args:
        answers: Under "lm" the model's own, under "knn" the one with the neighbors' votes,
            or under "text" one that was explained.
        metric: How the datastores compare keys.
        name: Begins the names of elements; another for each place of a page.
    """
    together = ", both texts at once" if len(answers) > 1 else ""
    columns = "".join(
        _column(
            answers[side],
            side,
            name,
            "read in one pass" if side == "text" else _pace(answers[side]) + together,
        )
        for side in _TITLES
        if side in answers
    )
    many = " kl-two" if len(answers) > 1 else ""
    parts = [f'<div class="kl-grid{many}">{columns}</div>']
    knn = answers.get("knn") or answers.get("text")
    if knn is not None:
        parts += [_nothing_near(knn), legend(), _panels(knn, name, metric)]
    return "".join(parts)


def _nothing_near(answer: Answer) -> str:
    """A warning where the memory holds nothing like the text."""
    if answer.trace is None or answer.trace[0].near is not False:
        return ""
    return (
        '<p class="kl-far" role="status"><b>Nothing near.</b> The memory holds nothing like this '
        "text. What it says here may be about something else.</p>"
    )


def _pace(answer: Answer) -> str:
    """How the words came, so that nobody compares speeds of different kinds unawares."""
    passes = answer.passes
    if passes is None or passes >= answer.tokens:
        return "written one by one"
    return f"{passes} pass{'' if passes == 1 else 'es'} of the model, drafted from the memory"


_TITLES = {"lm": "The model alone", "knn": "With its memory (kNN)", "text": "The text"}


def _column(answer: Answer, side: str, name: str, pace: str) -> str:
    words = words_of(answer.words)
    traced = answer.trace is not None
    opened = _opened(words) if traced else None
    tokens = answer.trace[0].tokens if answer.trace is not None else []
    shown = "".join(
        text(word.space)
        + _word(
            word,
            place,
            name,
            traced=traced,
            knn=answer.knn,
            opened=place == opened,
            against=contradiction([tokens[one] for one in word.tokens if one < len(tokens)])
            is not None,
        )
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
        panel(word, place, name, tokens, metric, opened=place == opened)
        for place, word in enumerate(words)
        if word.text
    )
    return f'<div class="kl-panels">{panels}</div>'


def _opened(words: Sequence[Word]) -> int | None:
    """The word whose sources are shown first: the one that owes most to the memory."""
    best = max(range(len(words)), key=lambda place: words[place].share, default=None)
    return best if best is not None and level(words[best].share) else None


def _word(
    word: Word,
    place: int,
    name: str,
    *,
    traced: bool,
    knn: bool,
    opened: bool = False,
    against: bool = False,
) -> str:
    if not word.text:
        return ""
    if not knn:
        return text(word.text)
    shown = f'class="kl-w kl-l{level(word.share)}{" kl-not" if against else ""}"'
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
