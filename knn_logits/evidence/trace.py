"""`Trace` holds, for each token, its probabilities and the passages that caused it, and shows them.

It is shown in colours in a terminal, and by rich as HTML.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text

from knn_logits.errors import TraceError
from knn_logits.evidence.records import (
    LEAST_INFLUENCE,
    DocumentShare,
    NeighborTrace,
    SequenceTrace,
    TokenTrace,
)
from knn_logits.evidence.sources import Source, main_sources, share_of, words_of
from knn_logits.printable import Encoded, one_line, printable
from knn_logits.store.files import write_bytes

_FORMAT, _VERSION = "knn-logits trace", 1

_LEVELS = (
    (0.75, "bold underline green4"),
    (0.50, "underline green4"),
    (0.25, "underline yellow4"),
    (0.05, "underline grey58"),
)
ALONE = "nothing near: no passage has a part in these words"
_AGREED, _UNLIKE, _CONTRADICTED = "underline", "yellow4", "bold underline red"
_LEGEND = ("≥75%", "≥50%", "≥25%", "≥5%")
# The most documents that a text's last line names, and the share below which it only counts them.
_DOCUMENTS, _MIN_LISTED_SHARE = 5, 0.01


@cache
def _sequences() -> TypeAdapter[SequenceTrace]:
    return TypeAdapter(SequenceTrace)


def token_dict(token: TokenTrace) -> dict[str, Any]:
    """A token as plain values. Each neighbor has its snippet as a whole and in parts."""
    plain = asdict(token) | {"meaning": token.meaning}
    for neighbor, passage in zip(plain["neighbors"], token.neighbors, strict=True):
        neighbor["snippet"] = passage.snippet
    return plain


@dataclass(frozen=True)
class Trace:
    """The sequences of one `generate()`, or one explained text.

    Attributes:
        sequences: The traced sequences.
        stores: The names of the datastores that were searched. What is shown of a trace names the
            datastore of each document if there are several.
    """

    sequences: list[SequenceTrace]
    stores: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, number: int) -> SequenceTrace:
        return self.sequences[number]

    def __iter__(self) -> Iterator[SequenceTrace]:
        return iter(self.sequences)

    def show(self, sources: int = 8) -> None:
        """Prints the text in the colours of its influence, and the main sources below it.

        Args:
            sources: The most passages to list for each sequence.
        """
        show(self, sources)

    def _repr_html_(self) -> str:
        return to_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the trace as plain values, as `save` writes it."""
        sequences = [
            {name: getattr(sequence, name) for name in ("prompt", "text", "apart")}
            | {"tokens": [token_dict(token) for token in sequence.tokens]}
            | {"contradictions": [asdict(one) for one in sequence.contradictions]}
            for sequence in self.sequences
        ]
        stores = list(self.stores)
        return {"format": _FORMAT, "version": _VERSION, "stores": stores, "sequences": sequences}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace as JSON."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n"
        write_bytes(Path(path).resolve(), text.encode())

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace as an HTML page that needs no other files."""
        head = '<!doctype html>\n<meta charset="utf-8"><title>a trace</title>\n'
        write_bytes(Path(path).resolve(), f"{head}{to_html(self)}\n".encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a trace that `save` wrote.

        Raises:
            TraceError: when the file is not a trace.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT or content["version"] != _VERSION:
                raise ValueError("another format or version")
            sequences = [_sequences().validate_python(row) for row in content["sequences"]]
            return cls(sequences, tuple(map(str, content.get("stores", ()))))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise TraceError(
                f"{path} is not a trace ({reason:.200}); use a file written by Trace.save()"
            ) from error


def _terminal_style(tokens: Sequence[TokenTrace]) -> str:
    """The style of a word, which shows what the memory did for it, and how much."""
    meanings = {token.meaning for token in tokens}
    if "contradicted" in meanings:
        return _CONTRADICTED
    if "changed" in meanings and any(token.unlike for token in tokens):
        return _UNLIKE
    share = share_of(tokens)
    if "changed" not in meanings:
        return _AGREED if share >= LEAST_INFLUENCE and "agreed" in meanings else ""
    return next((style for least, style in _LEVELS if share >= least), "")


def _coloured(sequence: SequenceTrace) -> Text:
    """Makes rich text of a sequence. The prompt is dim, and styles show the memory's part."""
    gap = "\n\n" if sequence.apart and sequence.prompt else ""
    text = Text().append(printable(sequence.prompt + gap), style="dim")
    for tokens in words_of(sequence.tokens):
        style = _terminal_style(tokens)
        for token in tokens:
            text.append(printable(token.token), style=style)
    # Without a prompt nothing stands before the space of the first word.
    return text if sequence.prompt else text[len(text.plain) - len(text.plain.lstrip(" ")) :]


def _legend() -> Text:
    """Explains the colours in one line."""
    levels = [(name, style) for name, (_, style) in zip(_LEGEND, _LEVELS, strict=True)]
    meanings = [
        ("agreed", _AGREED),
        ("from a sentence unlike this one", _UNLIKE),
        ("contradicted", _CONTRADICTED),
    ]
    line = Text("brought by the memory, its share in the word: ", style="dim")
    return line.append_text(Text("  ").join(Text(*part) for part in levels + meanings))


def show(trace: Trace, sources: int, console: Console | None = None) -> None:
    """Prints a trace, with the main passages of each sequence."""
    stream: Any = Encoded(sys.stdout)
    console = console or Console(file=stream, highlight=False, soft_wrap=True)
    several = len(trace.stores) > 1
    for sequence in trace:
        console.print(_coloured(sequence))
        listed = main_sources(sequence, sources)
        if listed:
            console.print(_legend())
        for source in listed:
            _print_source(source, console, several)
        for one in sequence.contradictions:
            words, rival = one_line(one.words).strip(), one.by_memory
            shown = rival.passage or rival.document
            by = "" if shown is None else f", by {_title(shown, several)}"
            said = repr(one_line(rival.token).strip())
            line = f"{words}: the memory says {said} (most words around are the same{by})"
            console.print(Text(line, style="red"))
        if sequence.alone:
            console.print(Text(ALONE, style="dim"))
        if line := _documents_line(sequence, several):
            console.print(Text(printable(line), style="dim"))
        console.print()


def _title(item: NeighborTrace | DocumentShare, several: bool) -> str:
    """A document's title or id, with its datastore if there are several."""
    title = one_line(item.title or item.document)
    return f"{title} ({one_line(item.store)})" if several else title


def _print_source(source: Source, console: Console, several: bool) -> None:
    line = Text.assemble(
        (one_line(source.words).strip(), _terminal_style(source.tokens)),
        (f"  {source.total:.0%} by the neighbors, {source.document.share:.0%} by ", "dim"),
        (_title(source.neighbor or source.document, several), "bold"),
    )
    instead = source.tokens[0].by_model
    if instead is not None and instead.token.strip():
        line.append(f"  in place of {one_line(instead.token).strip()!r}", style="dim")
    pairs = [(token.p_lm, token.p) for token in source.tokens if None not in (token.p, token.p_lm)]
    if pairs:
        p_lm, p = (sum(map(float, column)) / len(pairs) for column in zip(*pairs, strict=True))
        line.append(f"  p_LM {p_lm:.3f} → p {p:.3f}", style="dim")
    if any(token.unlike for token in source.tokens):
        line.append("  from a sentence unlike this one", style=_UNLIKE)
    console.print(line)
    neighbor = source.neighbor
    if neighbor is None:
        return
    words = one_line(source.words)
    if not console.is_terminal:
        # Without colours, as in a file, the words are marked with signs.
        words = words.replace(words.strip(), f"»{words.strip()}«")
    before, after = one_line(neighbor.before)[-120:].lstrip(), one_line(source.after)[:60]
    passage = Text("    … ", style="dim").append(before).append(words, style="reverse")
    console.print(passage.append(after))
    if neighbor.source is not None:
        console.print(Text(f"    ⇐ {one_line(neighbor.source)[:200]}", style="dim"))


def _documents_line(sequence: SequenceTrace, several: bool) -> str:
    """Lists the documents of a whole text with their shares, and the share of the model."""
    documents = sequence.documents
    listed = [
        document for document in documents[:_DOCUMENTS] if document.share >= _MIN_LISTED_SHARE
    ]
    if not listed:
        return ""
    shown = [f"{document.share:.0%} {_title(document, several)}" for document in listed]
    if rest := documents[len(listed) :]:
        part = sum(document.share for document in rest)
        shown.append(f"{part:.0%} {len(rest)} more document{'s' if len(rest) > 1 else ''}")
    model_share = 1.0 - sum(document.share for document in documents)
    return f"documents: {', '.join(shown)}; the model itself {max(0.0, model_share):.0%}"


def to_html(trace: Trace) -> str:
    """Makes HTML of a trace. Every text from outside is escaped."""
    console = Console(file=io.StringIO(), force_jupyter=False, record=True, soft_wrap=True)
    show(trace, 8, console)
    form = '<pre style="white-space:pre-wrap;line-height:1.7">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=form)
