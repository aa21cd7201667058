"""`Wanted` is the gate that a user asks `tune` for: its kind, and how many searches it skips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from knn_logits.errors import ConfigError

GateKind = Literal["constant", "distance", "learned", "meta-k", "rescorer"]
# This word asks for no gate, and for the removal of a stored one.
NO_GATE = "none"
SkipKind = Literal["learned", "confidence"]


@dataclass(frozen=True)
class Wanted:
    """The gate that a user asks for."""

    kind: GateKind  # the kind of gate, which says what λ depends on
    skip: float | None  # share of tokens without a search; None for a gate that always searches
    skip_by: SkipKind  # how the tokens without a search are chosen

    @classmethod
    def of(cls, kind: str | None, skip: float | None, skip_by: str) -> Wanted | None:
        """Returns the gate that arguments ask for; None if they ask for no gate."""
        if kind in (None, NO_GATE) and skip is None:
            return None
        if kind in (None, NO_GATE):
            raise ConfigError(
                "--skip needs a gate: give --gate learned, meta-k, rescorer, distance or constant"
            )
        for gate_kind in get_args(GateKind):
            if kind == gate_kind:
                break
        else:
            names = ", ".join((*get_args(GateKind), NO_GATE))
            raise ConfigError(f"the gate must be one of {names}, not {kind!r}")
        if skip_by not in get_args(SkipKind):
            raise ConfigError(
                f"a gate skips by one of {', '.join(get_args(SkipKind))}, not {skip_by!r}"
            )
        if skip is None and kind == "constant":
            raise ConfigError(
                "a constant gate is the number λ, which is tuned anyway: leave --gate out, or add "
                "--skip"
            )
        if skip is not None and (isinstance(skip, bool) or not 0.0 <= skip < 1.0):
            raise ConfigError(f"skip must be a share of at least 0 and below 1, not {skip!r}")
        return cls(gate_kind, skip, skip_by)  # type: ignore[arg-type]

    @property
    def reads_all(self) -> bool:
        """Whether the gate reads all neighbors, so that it wants the largest k that is tried."""
        return self.kind in ("meta-k", "rescorer")
