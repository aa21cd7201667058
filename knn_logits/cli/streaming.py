"""Prints text while it is written, each token in the colour of the memory's share in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from transformers.generation.streamers import BaseStreamer

from knn_logits.engine.pieces import Pieces
from knn_logits.engine.tokens import special_ids
from knn_logits.evidence.render import level_style
from knn_logits.printable import Encoded, printable

if TYPE_CHECKING:
    from rich.console import Console

    from knn_logits.generation.processor import KNNLogitsProcessor


class Printed(BaseStreamer):
    """Prints what `generate()` writes, without the prompt and without special tokens."""

    def __init__(self, console: Console, tokenizer: Any, knn: KNNLogitsProcessor | None) -> None:
        self._console, self._tokenizer, self._knn = console, tokenizer, knn
        self._special = special_ids(tokenizer)
        self._pieces: Pieces | None = None

    def put(self, value: Any) -> None:
        """Takes the prompt's ids first, then each token."""
        ids = value.flatten().tolist()
        if self._pieces is None:
            self._pieces = Pieces(self._tokenizer, ids)
            return
        for token in ids:
            if token not in self._special:
                self._print(self._pieces.add(token), token)

    def end(self) -> None:
        """Ends the line."""
        self._console.print()

    def _print(self, text: str, token: int) -> None:
        from rich.text import Text

        vote = self._knn.vote if self._knn is not None else None
        style = level_style(vote.influence(0, token)) if vote is not None else ""
        self._console.print(Text(printable(text), style=style), end="", soft_wrap=True)


def printed(prompt: str, tokenizer: Any) -> Printed:
    """Prints a prompt on standard output, and then its continuation, without colours."""
    from rich.console import Console

    stream: Any = Encoded(sys.stdout)
    console = Console(file=stream, highlight=False)
    console.print(printable(prompt), end="", markup=False, soft_wrap=True)
    return Printed(console, tokenizer, None)
