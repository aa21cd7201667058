"""Shows a trace to people, in colours: in a terminal, and by rich as HTML."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from knn_logits.evidence.records import LEAST_INFLUENCE, Rival, SequenceTrace, TokenTrace
from knn_logits.evidence.sources import (
    Source,
    contradiction,
    main_sources,
    share_of,
    words_of,
)
from knn_logits.printable import Encoded, one_line, printable

if TYPE_CHECKING:
    from knn_logits.evidence.trace import Trace

_LEVELS = (
    (0.75, "bold underline green4"),
    (0.50, "underline green4"),
    (0.25, "underline yellow4"),
    (0.05, "underline grey58"),
)
ALONE = "nothing near: no passage has a part in these words"
_AGREED, _CONTRADICTED = "underline", "bold underline red"
_LEGEND = ("≥75%", "≥50%", "≥25%", "≥5%")
# The most documents that a text's last line names, and the share below which it only counts them.
_DOCUMENTS, _MIN_LISTED_SHARE = 5, 0.01


def _terminal_style(tokens: Sequence[TokenTrace]) -> str:
    """The style of a word, which shows what the memory did for it, and how much."""
    meanings = {token.meaning for token in tokens}
    if "contradicted" in meanings:
        return _CONTRADICTED
    share = share_of(tokens)
    if "changed" not in meanings:
        return _AGREED if share >= LEAST_INFLUENCE and "agreed" in meanings else ""
    return level_style(share)


def level_style(share: float) -> str:
    """The style of a word in which the memory has a share."""
    return next((style for least, style in _LEVELS if share >= least), "")


def _coloured(sequence: SequenceTrace) -> Text:
    """Makes rich text of a sequence. The prompt is dim, and styles show the memory's part."""
    text = Text().append(printable(sequence.prompt + _gap(sequence)), style="dim")
    for tokens in words_of(sequence.tokens):
        style = _terminal_style(tokens)
        for token in tokens:
            text.append(printable(token.token), style=style)
    # Without a prompt nothing stands before the space of the first word.
    return text if sequence.prompt else text[len(text.plain) - len(text.plain.lstrip(" ")) :]


def _gap(sequence: SequenceTrace) -> str:
    """The text between a prompt and its answer."""
    return "\n\n" if sequence.apart and sequence.prompt else ""


def _legend() -> Text:
    """Explains the colours in one line."""
    levels = [(name, style) for name, (_, style) in zip(_LEGEND, _LEVELS, strict=True)]
    meanings = [("agreed", _AGREED), ("contradicted", _CONTRADICTED)]
    line = Text("brought by the memory, its share in the word: ", style="dim")
    return line.append_text(Text("  ").join(Text(*part) for part in levels + meanings))


def _notes(sequence: SequenceTrace) -> Iterator[str]:
    """Yields what holds for a text as a whole."""
    if sequence.alone:
        yield ALONE
    if line := documents_line(sequence):
        yield line


def show(trace: Trace, sources: int, console: Console | None = None) -> None:
    """Prints a trace, with the main passages of each sequence."""
    stream: Any = Encoded(sys.stdout)
    console = console or Console(file=stream, highlight=False, soft_wrap=True)
    for sequence in with_store_names(trace):
        console.print(_coloured(sequence))
        listed = main_sources(sequence, sources)
        if listed:
            console.print(_legend())
        _print_sources(listed, console)
        for tokens in _objections(sequence):
            _print_contradiction(tokens, console)
        for note in _notes(sequence):
            console.print(Text(printable(note), style="dim"))
        console.print()


def _objections(sequence: SequenceTrace) -> Iterator[list[TokenTrace]]:
    """Yields the words that a passage replaces."""
    groups: list[list[TokenTrace]] = []
    last: Rival | None = None
    space: list[TokenTrace] = []
    for tokens in words_of(sequence.tokens):
        rival = contradiction(tokens)
        if rival is None and not "".join(token.token for token in tokens).strip():
            space = tokens
            continue
        if rival is not None and rival is last:
            groups[-1] += [*space, *tokens]
        else:
            groups.append(list(tokens))
        last, space = rival, []
    yield from filter(contradiction, groups)


def _print_contradiction(tokens: Sequence[TokenTrace], console: Console) -> None:
    if line := _contradiction(tokens):
        console.print(Text(line, style="red"))


def _print_sources(listed: Sequence[Source], console: Console) -> None:
    for source in listed:
        console.print(_heading(source))
        neighbor = source.neighbor
        if neighbor is None:
            continue
        words = one_line(source.words)
        if not console.is_terminal:
            # Without colours, as in a file, the words are marked with signs.
            words = words.replace(words.strip(), f"»{words.strip()}«")
        before, after = one_line(neighbor.before)[-120:].lstrip(), one_line(source.after)[:60]
        passage = Text("    … ", style="dim").append(before).append(words, style="reverse")
        console.print(passage.append(after))
        if neighbor.source is not None:
            line = Text(f"    ⇐ {one_line(neighbor.source)[:200]}", style="dim")
            console.print(line)


def _contradiction(tokens: Sequence[TokenTrace]) -> str:
    """Says in one line what a passage has in place of a word; empty if none contradicts it."""
    rival = contradiction(tokens)
    if rival is None:
        return ""
    word = one_line("".join(token.token for token in tokens)).strip()
    shown = rival.passage or rival.document
    by = f", by {one_line(shown.title or shown.document)}" if shown is not None else ""
    return f"{word}: the memory says {_quoted(rival.token)} (the words around are the same{by})"


def _quoted(token: str) -> str:
    """Puts a token in quotation marks. White space, which cannot be seen, gets a name."""
    if token.strip():
        return repr(one_line(token).strip())
    return "a line break" if "\n" in token else "white space"


def documents_line(sequence: SequenceTrace) -> str:
    """Lists the documents of a whole text with their shares, and the share of the model."""
    documents = sequence.documents
    listed = [
        document for document in documents[:_DOCUMENTS] if document.share >= _MIN_LISTED_SHARE
    ]
    if not listed:
        return ""
    shown = [
        f"{document.share:.0%} {one_line(document.title or document.document)}"
        for document in listed
    ]
    if rest := documents[len(listed) :]:
        part = sum(document.share for document in rest)
        shown.append(f"{part:.0%} {len(rest)} more document{'s' if len(rest) > 1 else ''}")
    model_share = 1.0 - sum(document.share for document in documents)
    return f"documents: {', '.join(shown)}; the model itself {max(0.0, model_share):.0%}"


def with_store_names(trace: Trace) -> Trace:
    """Adds to each document's title the name of its datastore, if there are several."""
    if len(trace.stores) < 2:
        return trace

    def titled(item: Any) -> Any:
        return item and replace(item, title=f"{item.title or item.document} ({item.store})")

    def renamed(token: TokenTrace) -> TokenTrace:
        rival = token.by_memory
        return replace(
            token,
            neighbors=[titled(item) for item in token.neighbors],
            documents=[titled(item) for item in token.documents],
            by_memory=rival
            and replace(rival, document=titled(rival.document), passage=titled(rival.passage)),
        )

    sequences = [replace(item, tokens=[renamed(token) for token in item.tokens]) for item in trace]
    return replace(trace, sequences=sequences)


def _title(source: Source) -> str:
    """A document's title or id with the place."""
    placed = source.neighbor.title if source.neighbor is not None else None
    return placed or source.document.title or source.document.document


def _heading(source: Source) -> Text:
    line = Text.assemble(
        (one_line(source.words).strip(), _terminal_style(source.tokens)),
        (f"  {source.total:.0%} by the neighbors, {source.document.share:.0%} by ", "dim"),
        (one_line(_title(source)), "bold"),
    )
    instead = source.tokens[0].by_model
    if instead is not None and instead.token.strip():
        line.append(f"  in place of {one_line(instead.token).strip()!r}", style="dim")
    pairs = [(token.p_lm, token.p) for token in source.tokens if None not in (token.p, token.p_lm)]
    if pairs:
        p_lm, p = (sum(map(float, column)) / len(pairs) for column in zip(*pairs, strict=True))
        line.append(f"  p_LM {p_lm:.3f} → p {p:.3f}", style="dim")
    return line


def to_html(trace: Trace) -> str:
    """Makes HTML of a trace. Every text from outside is escaped."""
    console = Console(file=io.StringIO(), force_jupyter=False, record=True, soft_wrap=True)
    show(trace, 8, console)
    form = '<pre style="white-space:pre-wrap;line-height:1.7">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=form)
