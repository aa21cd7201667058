"""Whether a memory has anything like a text."""

from __future__ import annotations

from dataclasses import dataclass

# A text with a smaller share of the expected hits counts as unlike the memory. With fewer positions
# than the first number nothing is known, and with fewer than the last number little.
_FAMILIAR, _FEWEST_PLACES, _ENOUGH_PLACES = 0.65, 3, 12


@dataclass(frozen=True)
class Familiarity:
    """How well the memory predicts a given text, which shows whether it knows such text."""

    hits: int
    places: int
    expected: float
    trusted: bool = False
    named: bool | None = None  # the passage of its first word names what was asked; None: no answer

    @property
    def near(self) -> bool | None:
        """Whether the memory has anything like the text; None if the text is too short to say."""
        if self.trusted or self.named:
            return True
        if self.places < _FEWEST_PLACES:
            return None
        if self.places < _ENOUGH_PLACES:
            # Some words of a short question are met by chance, so an answer that names nothing of
            # it needs as many as text like the datastore's.
            least = 1 if self.named is None else self.expected * self.places
            return self.hits >= least
        return self.hits >= _FAMILIAR * self.expected * self.places
