"""Prints text while it is written."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from knn_logits.cli.terminal import broken
from knn_logits.printable import printable

if TYPE_CHECKING:
    from knn_logits.generation.processor import KNNLogitsProcessor

# A word that may go on, with the space before it.
_UNFINISHED = re.compile(r"\s*\S*\Z")


class _Lines:
    """Prints text that comes in pieces. On a terminal its lines break between words."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._held = Text()

    def add(self, text: Text) -> None:
        """Prints what is known to be whole words."""
        if not self._console.is_terminal:
            self._console.print(text, end="")
            return
        self._held.append_text(text)
        unfinished = _UNFINISHED.search(self._held.plain)
        assert unfinished is not None
        self._print(self._held[: unfinished.start()])
        self._held = self._held[unfinished.start() :]

    def end(self) -> None:
        self._print(self._held)
        self._held, self._column = Text(), 0
        self._console.print()

    def _print(self, text: Text) -> None:
        *before, last = broken(text, self._console.width, self._column)
        self._column = cell_len(last.plain) + (0 if before else self._column)
        self._console.print(Text("\n").join([*before, last]), end="")


class Printed:
    """A streamer of `generate()`, which prints each token in the colour of the memory's share."""

    def __init__(
        self,
        console: Console,
        tokenizer: Any,
        knn: KNNLogitsProcessor | None = None,
        prompt: str = "",
    ) -> None:
        from knn_logits.engine.pieces import Pieces
        from knn_logits.engine.tokens import special_ids

        self._lines, self._knn = _Lines(console), knn
        self._begin = partial(Pieces, tokenizer)
        self._special = special_ids(tokenizer)
        self._pieces: Any = None
        self._lines.add(Text(printable(prompt)))

    def put(self, value: Any) -> None:
        """Takes the prompt's ids first, then each token."""
        ids = value.flatten().tolist()
        if self._pieces is None:
            self._pieces = self._begin(ids)
            return
        from knn_logits.evidence.render import level_style

        for token in ids:
            if token not in self._special:
                text = printable(self._pieces.add(token))
                vote = self._knn.vote if self._knn is not None else None
                style = level_style(vote.influence(0, token)) if vote is not None else ""
                self._lines.add(Text(text, style=style))

    @property
    def begun(self) -> bool:
        return self._pieces is not None

    def end(self) -> None:
        self._lines.end()
