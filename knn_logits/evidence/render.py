"""Shows a trace to people: in colours in a terminal, and as escaped HTML in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
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

# The colour and the kind of underline both show the level, so that either is enough.
_LEVELS = (
    (0.75, "bold underline green4", "#8fd19e", "double"),
    (0.50, "underline green4", "#c0e6c8", "solid"),
    (0.25, "underline yellow4", "#f5ecb3", "dashed"),
    (0.05, "underline grey58", "#eeeeee", "dotted"),
)
ALONE = "nothing near: no passage has a part in these words"
_AGREED, _CONTRADICTED, _OUTVOTED = "underline", "bold underline red", "italic"
_LEGEND = ("≥75%", "≥50%", "≥25%", "≥5%")


# The most numbers that are listed as not checked.
_NUMBERS = 8
# The most documents that a text's last line names, and the share below which it only counts them.
_DOCUMENTS, _MIN_LISTED_SHARE = 5, 0.01


def _terminal_style(tokens: Sequence[TokenTrace]) -> str:
    """The style of a word, which shows what the memory did for it, and how much."""
    meanings = {token.meaning for token in tokens}
    if "contradicted" in meanings:
        return _CONTRADICTED
    if "outvoted" in meanings:
        return _OUTVOTED
    share = share_of(tokens)
    if "changed" not in meanings:
        return _AGREED if share >= LEAST_INFLUENCE and "agreed" in meanings else ""
    return level_style(share)


def level_style(share: float) -> str:
    """The style of a word in which the memory has a share."""
    return next((style for least, style, _, _ in _LEVELS if share >= least), "")


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
    levels = [(name, style) for name, (_, style, _, _) in zip(_LEGEND, _LEVELS, strict=True)]
    meanings = [("agreed", _AGREED), ("contradicted", _CONTRADICTED), ("outvoted", _OUTVOTED)]
    line = Text("brought by the memory, its share in the word: ", style="dim")
    return line.append_text(Text("  ").join(Text(*part) for part in levels + meanings))


def _notes(sequence: SequenceTrace) -> Iterator[str]:
    """Yields what holds for a text as a whole."""
    if sequence.alone:
        yield ALONE
    if sequence.unchecked:
        rest = len(sequence.unchecked) - _NUMBERS
        numbers = ", ".join(map(one_line, sequence.unchecked[:_NUMBERS]))
        suffix = f" and {rest} more" if rest > 0 else ""
        yield f"not checked, since no passage has the words around: {numbers}{suffix}"
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
    """Yields words that a passage replaces, and outvoted numbers and names."""
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
    for group in groups:
        if contradiction(group) or _is_fact(group):
            yield group


def _is_fact(tokens: Sequence[TokenTrace]) -> bool:
    """Whether both a word and what outvotes it are numbers, or both are names."""
    rival = contradiction(tokens, "outvoted")
    if rival is None:
        return False
    texts = ("".join(token.token for token in tokens), rival.token)
    numbers = [any(map(str.isdigit, text)) for text in texts]
    return all(numbers) or (not any(numbers) and all(text.strip()[:1].isupper() for text in texts))


def _print_contradiction(tokens: Sequence[TokenTrace], console: Console) -> None:
    if line := _contradiction(tokens):
        style = "red" if contradiction(tokens) else "dim"
        console.print(Text(line, style=style))


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
    """Says in one line what the memory has in place of a word; empty if it does not object."""
    rival = contradiction(tokens) or contradiction(tokens, "outvoted")
    if rival is None:
        return ""
    word = one_line("".join(token.token for token in tokens)).strip()
    by = ""
    if rival.document is not None:
        by = f", by {one_line((rival.passage or rival.document).title or rival.document.document)}"
    if rival.quoted:
        words = _quoted(rival.token)
        return f"{word}: the memory says {words} (the words around are the same{by})"
    place = next(place for place, token in enumerate(tokens) if token.by_memory is rival)
    whole = _quoted("".join(token.token for token in tokens[:place]) + rival.token)
    return (
        f"{word}: the memory's neighbors would have written {whole} ({rival.p:.0%} of its vote{by})"
    )


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


def _escaped(text: str) -> str:
    return escape(printable(text), quote=True)


def to_html(trace: Trace) -> str:
    """Makes HTML of a trace. Every text from outside is escaped."""
    trace = with_store_names(trace)
    parts = ['<div class="knn-trace" style="font-family:serif;line-height:1.7">']
    for sequence in trace:
        parts.append('<p style="white-space:pre-wrap">')
        parts.append(
            f'<span style="opacity:.6">{_escaped(sequence.prompt + _gap(sequence))}</span>'
        )
        for tokens in words_of(sequence.tokens):
            parts += [_token_html(token, tokens) for token in tokens]
        parts.append("</p>")
        parts += [_source_html(source) for source in main_sources(sequence, 8)]
        for note in _notes(sequence):
            parts.append(f'<p style="opacity:.7;font-size:.9em">{_escaped(note)}</p>')
    parts.append("</div>")
    return "".join(parts)


def to_page(trace: Trace) -> str:
    """Makes a whole HTML document of a trace, without scripts and without other files."""
    title = _escaped("".join(sequence.text for sequence in trace)[:60].strip() or "a trace")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f'<title>{title}</title></head><body style="max-width:60em;margin:2em auto;padding:0 1em">'
        f"{to_html(trace)}</body></html>\n"
    )


def _source_html(source: Source) -> str:
    neighbor, title = source.neighbor, _title(source)
    passage = read = ""
    if neighbor is not None:
        words = f"<mark>{_escaped(source.words)}</mark>"
        passage = f": {_escaped(neighbor.before)}{words}{_escaped(source.after)}"
        if neighbor.source:
            read = f'<br><span style="opacity:.6">⇐ {_escaped(neighbor.source)}</span>'
    return (
        f'<div style="margin:.2em 1em;font-size:.9em"><b>{_escaped(source.words)}</b> '
        f"{source.total:.0%}, {source.document.share:.0%} by <i>{_escaped(title)}</i>"
        f"{passage}{read}</div>"
    )


def _token_html(token: TokenTrace, word: Sequence[TokenTrace]) -> str:
    share, text = share_of(word), _escaped(token.token)
    objection = _contradiction(word)
    if objection:
        line = "wavy #b3261e" if contradiction(word) else "dotted #777"
        style = f"text-decoration:underline {line}"
        return f'<span title="{_escaped(objection)}" style="{style}">{text}</span>'
    level = next((level for level in _LEVELS if share >= level[0]), None)
    meanings = {token.meaning for token in word}
    if level is None or not meanings & {"changed", "agreed"}:
        return f"<span>{text}</span>"
    title = f"{share:.0%} from the neighbors"
    if token.documents:
        title += f": {token.documents[0].title or token.documents[0].document}"
    if "changed" not in meanings:
        style = "border-bottom:1px solid #227744"
    else:
        style = f"color:#111;background:{level[2]};border-bottom:2px {level[3]} #227744"
    return f'<span title="{_escaped(title)}" style="{style}">{text}</span>'
