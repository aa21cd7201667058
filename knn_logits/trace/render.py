"""A trace for people: coloured in a terminal, escaped HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from knn_logits.trace.trace import NeighborTrace, SequenceTrace, TokenTrace, Trace

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Colour and the kind of line both say it, so that neither is needed alone.
_LEVELS = (
    (0.75, "bold underline green4", "#8fd19e", "double"),
    (0.50, "underline green4", "#c0e6c8", "solid"),
    (0.25, "underline yellow4", "#f5ecb3", "dashed"),
    (0.05, "underline grey58", "#eeeeee", "dotted"),
)
_LEGEND = ("≥75%", "≥50%", "≥25%", "≥5%")


def _terminal_style(influence: float) -> str:
    return next((style for least, style, _, _ in _LEVELS if influence >= least), "")


def coloured_text(sequence: SequenceTrace) -> Text:
    """A sequence as rich text: the prompt dim, each token by its influence."""
    from rich.text import Text

    text = Text()
    text.append(sequence.prompt, style="dim")
    for token in sequence.tokens:
        text.append(token.token, style=_terminal_style(token.influence))
    return text


def legend() -> Text:
    """What the colours mean."""
    from rich.text import Text

    text = Text("share of the neighbors in a word's probability: ", style="dim")
    for name, (_, style, _, _) in zip(_LEGEND, _LEVELS, strict=True):
        text.append(name, style=style)
        text.append("  ")
    return text


@dataclass(frozen=True)
class WordSource:
    """A word of a text and the document that did most for it.

    Attributes:
        word: The word, of one token or several.
        influence: The document's share in the probability of its tokens, their mean.
        token: The token of the word that the passage did most for.
        neighbor: The passage.
    """

    word: str
    influence: float
    token: TokenTrace
    neighbor: NeighborTrace


def words_of(tokens: Sequence[TokenTrace]) -> list[list[TokenTrace]]:
    """Tokens grouped into words: a token that opens with white space opens a word."""
    words: list[list[TokenTrace]] = []
    for token in tokens:
        if not words or token.token[:1].isspace():
            words.append([])
        words[-1].append(token)
    return words


def main_sources(sequence: SequenceTrace, number: int) -> list[WordSource]:
    """The words that owe most to a document, in the order of the text."""
    found = []
    for place, tokens in enumerate(words_of(sequence.tokens)):
        text = "".join(token.token for token in tokens)
        shares: dict[str, float] = {}
        for neighbor in (one for token in tokens for one in token.neighbors):
            key = neighbor.document
            shares[key] = shares.get(key, 0.0) + neighbor.influence / len(tokens)
        if not shares or not text.strip():
            continue
        document, share = max(shares.items(), key=lambda item: item[1])
        token, neighbor = max(
            (
                (token, one)
                for token in tokens
                for one in token.neighbors
                if one.document == document
            ),
            key=lambda pair: pair[1].influence,
        )
        found.append((place, WordSource(text, share, token, neighbor)))
    strongest = sorted(found, key=lambda one: -one[1].influence)[:number]
    return [source for _, source in sorted(strongest, key=lambda one: one[0])]


def show(trace: Trace, sources: int, console: Console | None = None) -> None:
    """Prints a trace.

    Args:
        trace: What to print.
        sources: Passages listed for each sequence.
        console: Where to print; None takes standard output.
    """
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    for sequence in trace:
        console.print(coloured_text(sequence), soft_wrap=True)
        listed = main_sources(sequence, sources)
        if listed:
            console.print(legend())
        for source in listed:
            token, neighbor = source.token, source.neighbor
            line = Text()
            line.append(one_line(source.word).strip(), style=_terminal_style(token.influence))
            line.append(f"  {source.influence:.0%} from ", style="dim")
            line.append(one_line(neighbor.title or neighbor.document), style="bold")
            if token.p is not None and token.p_lm is not None:
                line.append(f"  p_LM {token.p_lm:.3f} → p {token.p:.3f}", style="dim")
            console.print(line, soft_wrap=True)
            passage = Text("    … ", style="dim")
            passage.append(one_line(neighbor.before)[-120:].lstrip())
            passage.append(one_line(neighbor.word), style="reverse")
            passage.append(one_line(neighbor.after)[:60])
            console.print(passage, soft_wrap=True)
        console.print()


def one_line(text: str) -> str:
    """Text with every run of white space, line breaks included, as one space."""
    joined = " ".join(text.split())
    left = " " if text[:1].isspace() else ""
    right = " " if joined and text[-1:].isspace() else ""
    return left + joined + right


def to_html(trace: Trace) -> str:
    """A trace as HTML; every text from outside is escaped."""
    parts = ['<div class="knn-trace" style="font-family:serif;line-height:1.7">']
    for sequence in trace:
        parts.append('<p style="white-space:pre-wrap">')
        parts.append(f'<span style="opacity:.6">{escape(sequence.prompt)}</span>')
        parts += [_token_html(token) for token in sequence.tokens]
        parts.append("</p>")
        for source in main_sources(sequence, 8):
            neighbor = source.neighbor
            parts.append(
                f'<div style="margin:.2em 1em;font-size:.9em"><b>{escape(source.word)}</b> '
                f"{source.influence:.0%} · <i>{escape(neighbor.title or neighbor.document)}</i>: "
                f"{escape(neighbor.before)}<mark>{escape(neighbor.word)}</mark>"
                f"{escape(neighbor.after)}</div>"
            )
    parts.append("</div>")
    return "".join(parts)


def _token_html(token: TokenTrace) -> str:
    level = next((level for level in _LEVELS if token.influence >= level[0]), None)
    if level is None:
        return f"<span>{escape(token.token)}</span>"
    title = f"{token.influence:.0%} from the neighbors"
    if token.neighbors:
        title += f": {token.neighbors[0].title or token.neighbors[0].document}"
    return (
        f'<span title="{escape(title, quote=True)}" style="color:#111;background:{level[2]};'
        f'border-bottom:2px {level[3]} #227744">{escape(token.token)}</span>'
    )
