"""Expands productions to wordings, and keeps some productions from training.

A grammar is a mapping from names to alternatives. `<NAME>` in an alternative stands for any
alternative of that name, `{e}` for what is asked about. A fixed rule keeps about one alternative
in ten for measuring: whatever contains it is a wording that training never had. The first
alternative of each name always stays in training.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping

Grammar = Mapping[str, tuple[str, ...]]
_HOLE = re.compile(r"<([A-Z_0-9]+)>")
_ONE_IN = 10
# Names that only choose among other names, or spaces and marks.
_ALWAYS = ("CORE_", "ASK_", "MARK", "THEN", "E_", "BE")


def alternatives(text: str) -> tuple[str, ...]:
    """The alternatives of a name, written with `|` between them, over any number of lines."""
    return tuple(" ".join(one.split()) for one in text.split("|"))


def is_held_out(name: str, alternative: str) -> bool:
    """Whether the fixed rule keeps an alternative from training; a name's first is not asked."""
    return zlib.crc32(f"{name}: {alternative}".encode()) % _ONE_IN == 3


class Expander:
    """Draws wordings from a grammar.

    Args:
        grammar: Names and their alternatives.
        held_out: False draws only what training may have. True draws wordings with at least one
            alternative that training never has.
    """

    def __init__(self, grammar: Grammar, *, held_out: bool = False) -> None:
        self.grammar = grammar
        self.held_out = held_out
        self.trained = {
            name: tuple(
                one
                for place, one in enumerate(options)
                if place == 0 or name.startswith(_ALWAYS) or not is_held_out(name, one)
            )
            for name, options in grammar.items()
        }
        self.kept = {
            name: set(options) - set(self.trained[name]) for name, options in grammar.items()
        }

    def draw(self, rng: random.Random, name: str) -> str:
        """A wording of a name, with `{e}` where the entity goes."""
        if not self.held_out:
            return self._expand(rng, name, [])
        while True:
            used: list[tuple[str, str]] = []
            wording = self._expand(rng, name, used)
            if any(one in self.kept[of] for of, one in used):
                return wording

    def _expand(self, rng: random.Random, name: str, used: list[tuple[str, str]]) -> str:
        options = self.grammar[name] if self.held_out else self.trained[name]
        chosen = rng.choice(options)
        used.append((name, chosen))
        return _HOLE.sub(lambda hole: self._expand(rng, hole[1], used), chosen)
