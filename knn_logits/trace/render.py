"""A trace for people: coloured in a terminal, escaped HTML in a notebook."""

from __future__ import annotations

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


def main_sources(
    sequence: SequenceTrace, number: int
) -> list[tuple[TokenTrace, NeighborTrace, float]]:
    """The passages with the most influence, one for each word and document.

    Returns:
        (token, neighbor, influence) in the order of the text; influence sums the word's neighbors
        from that document.
    """
    found = []
    for place, token in enumerate(sequence.tokens):
        by_document: dict[str, tuple[NeighborTrace, float]] = {}
        for neighbor in token.neighbors:
            best, total = by_document.get(neighbor.document, (neighbor, 0.0))
            by_document[neighbor.document] = (best, total + neighbor.influence)
        if by_document and token.token.strip():
            neighbor, total = max(by_document.values(), key=lambda one: one[1])
            found.append((total, place, token, neighbor))
    strongest = sorted(found, key=lambda one: -one[0])[:number]
    ordered = sorted(strongest, key=lambda one: one[1])
    return [(token, neighbor, total) for total, _, token, neighbor in ordered]


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
        for token, neighbor, total in listed:
            line = Text()
            line.append(repr(token.token.strip())[1:-1], style=_terminal_style(token.influence))
            line.append(f"  {total:.0%} from ", style="dim")
            line.append(one_line(neighbor.title or neighbor.document), style="bold")
            line.append("  p_LM ", style="dim")
            line.append(f"{token.p_lm or 0:.3f} → p {token.p or 0:.3f}", style="dim")
            console.print(line, soft_wrap=True)
            passage = Text("    … ", style="dim")
            passage.append(one_line(neighbor.before)[-120:])
            passage.append(neighbor.word, style="reverse")
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
        for token, neighbor, total in main_sources(sequence, 8):
            parts.append(
                f'<div style="margin:.2em 1em;font-size:.9em"><b>{escape(token.token)}</b> '
                f"{total:.0%} · <i>{escape(neighbor.title or neighbor.document)}</i>: "
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
