"""A trace for people: coloured in a terminal, escaped HTML in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from knn_logits.printable import Encoded, one_line, printable
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
    text.append(printable(sequence.prompt), style="dim")
    for token in sequence.tokens:
        text.append(printable(token.token), style=_terminal_style(token.influence))
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
class Source:
    """A word, or several in a row, and the passage of the document that did most for them.

    Attributes:
        words: The words, as they stand in the text.
        tokens: Their tokens.
        influence: The document's share in the tokens' probabilities, their mean, as far as its
            passages are among those that the trace kept.
        neighbor: The passage of the first word.
        same: How much of the passage, from its word on, the words repeat.
    """

    words: str
    tokens: list[TokenTrace]
    influence: float
    neighbor: NeighborTrace
    same: str

    @property
    def total(self) -> float:
        """Share of all neighbors in the tokens' probabilities, their mean."""
        return sum(token.influence for token in self.tokens) / len(self.tokens)

    def joined(self, other: Source) -> Source | None:
        """Both as one, where the other goes on in the same passage; None where it does not."""
        passage = self.neighbor.word + self.neighbor.after
        same = self.same + other.words
        if _place(other.neighbor) != _place(self.neighbor) or not passage.startswith(same):
            return None
        tokens = [*self.tokens, *other.tokens]
        influence = self.influence * len(self.tokens) + other.influence * len(other.tokens)
        words = self.words + other.words
        return Source(words, tokens, influence / len(tokens), self.neighbor, same)


def words_of(tokens: Sequence[TokenTrace]) -> list[list[TokenTrace]]:
    """Tokens grouped into words: a token that opens with white space opens a word."""
    words: list[list[TokenTrace]] = []
    for token in tokens:
        if not words or token.token[:1].isspace():
            words.append([])
        words[-1].append(token)
    return words


def main_sources(sequence: SequenceTrace, number: int) -> list[Source]:
    """What owes most to a document, in the order of the text.

    Words that follow one another in the text and in the passage come as one.
    """
    found: list[Source] = []
    last: Source | None = None
    for tokens in words_of(sequence.tokens):
        source = _source(tokens)
        joined = last.joined(source) if last is not None and source is not None else None
        if joined is not None:
            found[-1] = last = joined
            continue
        last = source
        if source is not None:
            found.append(source)
    strongest = sorted(found, key=lambda one: -one.influence * len(one.tokens))[:number]
    kept = {id(source) for source in strongest}
    return [source for source in found if id(source) in kept]


def _source(tokens: list[TokenTrace]) -> Source | None:
    text = "".join(token.token for token in tokens)
    shares: dict[tuple[str, str], float] = {}
    for neighbor in (one for token in tokens for one in token.neighbors):
        key = _place(neighbor)
        shares[key] = shares.get(key, 0.0) + neighbor.influence / len(tokens)
    if not shares or not text.strip():
        return None
    place, share = max(shares.items(), key=lambda item: item[1])
    for token in tokens:
        for neighbor in token.neighbors:
            if _place(neighbor) == place:
                passage = neighbor.word + neighbor.after
                whole = token is tokens[0] and passage.startswith(text)
                return Source(text, tokens, share, neighbor, text if whole else neighbor.word)
    return None


def _place(neighbor: NeighborTrace) -> tuple[str, str]:
    """What tells a document from all others: datastores may use the same ids."""
    return neighbor.store, neighbor.document


def show(trace: Trace, sources: int, console: Console | None = None) -> None:
    """Prints a trace.

    Args:
        trace: What to print.
        sources: Passages listed for each sequence.
        console: Where to print; None takes standard output.
    """
    from rich.console import Console
    from rich.text import Text

    stream: Any = Encoded(sys.stdout)
    console = console or Console(file=stream, highlight=False)
    for sequence in trace:
        console.print(coloured_text(sequence), soft_wrap=True)
        listed = main_sources(sequence, sources)
        if listed:
            console.print(legend())
        several = len({one.neighbor.store for one in listed}) > 1
        for source in listed:
            console.print(_heading(source, named=several), soft_wrap=True)
            before, same, after = _passage(source)
            passage = Text("    … ", style="dim")
            passage.append(one_line(before)[-120:].lstrip())
            passage.append(one_line(same), style="reverse")
            passage.append(one_line(after)[:60])
            console.print(passage, soft_wrap=True)
            if source.neighbor.source is not None:
                line = Text("    ⇐ ", style="dim")
                line.append(one_line(source.neighbor.source)[:200])
                console.print(line, soft_wrap=True)
        console.print()


def _title(neighbor: NeighborTrace, *, named: bool) -> str:
    """A document's title, or its id; with the datastore where there are several."""
    title = neighbor.title or neighbor.document
    return f"{title} ({neighbor.store})" if named else title


def _heading(source: Source, *, named: bool) -> Text:
    from rich.text import Text

    line = Text()
    line.append(one_line(source.words).strip(), style=_terminal_style(source.total))
    line.append(f"  {source.total:.0%} by the neighbors, {source.influence:.0%} by ", style="dim")
    line.append(one_line(_title(source.neighbor, named=named)), style="bold")
    known = [
        (one.p_lm, one.p) for one in source.tokens if one.p is not None and one.p_lm is not None
    ]
    if known:
        p_lm, p = (sum(column) / len(known) for column in zip(*known, strict=True))
        line.append(f"  p_LM {p_lm:.3f} → p {p:.3f}", style="dim")
    return line


def _passage(source: Source) -> tuple[str, str, str]:
    """The passage before the words, the words in it, and what follows."""
    neighbor = source.neighbor
    following = (neighbor.word + neighbor.after).removeprefix(source.same)
    return neighbor.before, source.same, following


def _escaped(text: str) -> str:
    return escape(printable(text), quote=True)


def to_html(trace: Trace) -> str:
    """A trace as HTML; every text from outside is escaped."""
    parts = ['<div class="knn-trace" style="font-family:serif;line-height:1.7">']
    for sequence in trace:
        parts.append('<p style="white-space:pre-wrap">')
        parts.append(f'<span style="opacity:.6">{_escaped(sequence.prompt)}</span>')
        parts += [_token_html(token) for token in sequence.tokens]
        parts.append("</p>")
        listed = main_sources(sequence, 8)
        several = len({one.neighbor.store for one in listed}) > 1
        for source in listed:
            before, same, after = _passage(source)
            title = _title(source.neighbor, named=several)
            of = source.neighbor.source
            read = f'<br><span style="opacity:.6">⇐ {_escaped(of)}</span>' if of else ""
            parts.append(
                f'<div style="margin:.2em 1em;font-size:.9em"><b>{_escaped(source.words)}</b> '
                f"{source.total:.0%}, {source.influence:.0%} by "
                f"<i>{_escaped(title)}</i>: "
                f"{_escaped(before)}<mark>{_escaped(same)}</mark>{_escaped(after)}{read}</div>"
            )
    parts.append("</div>")
    return "".join(parts)


def _token_html(token: TokenTrace) -> str:
    level = next((level for level in _LEVELS if token.influence >= level[0]), None)
    if level is None:
        return f"<span>{_escaped(token.token)}</span>"
    title = f"{token.influence:.0%} from the neighbors"
    if token.neighbors:
        title += f": {token.neighbors[0].title or token.neighbors[0].document}"
    return (
        f'<span title="{_escaped(title)}" style="color:#111;background:{level[2]};'
        f'border-bottom:2px {level[3]} #227744">{_escaped(token.token)}</span>'
    )
