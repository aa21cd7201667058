"""Writes a formula in one line: (a+b)/2, x^2, √(n)."""

from __future__ import annotations

import re
from typing import Any

from knn_logits.corpus.parsers import clean

# The most levels of a formula.
_DEEPEST = 20


def formula(node: Any, levels: int = _DEEPEST) -> str:
    """A formula of MathML or of Word in one line."""
    name = str(node.tag).rpartition("}")[2] if isinstance(node.tag, str) else "annotation"
    if name.startswith("annotation") or name.endswith("Pr") or not levels:
        return ""
    text = node.text or ""
    parts = [formula(part, levels - 1) for part in node if not str(part.tag).endswith("Pr")]
    match name, parts:
        case "mfrac" | "f", [above, below]:
            return f"{_grouped(above)}/{_grouped(below)}"
        case "msup" | "sSup", [base, high]:
            return base + _raised("^", high)
        case "msub" | "sSub", [base, low]:
            return base + _raised("_", low)
        case "msubsup" | "sSubSup", [base, low, high]:
            return base + _raised("_", low) + _raised("^", high)
        case "msqrt", _:
            return f"√({''.join(parts)})"
        case ("mroot", [inner, degree]) | ("rad", [degree, inner]):
            return f"{degree}√({inner})"
        case "nary", [low, high, inner]:
            signs = [
                str(value) for sign in node.iterfind("{*}naryPr/{*}chr") for value in sign.values()
            ]
            return f"{(signs or ['∫'])[0]}{_raised('_', low)}{_raised('^', high)} {inner}"
        case "d", _:
            return f"({', '.join(parts)})"
        case "t", _:
            return text
    return clean(text).strip() + "".join(parts) or clean(node.get("alttext") or "")


def _raised(sign: str, text: str) -> str:
    return f"{sign}{_grouped(text)}" if text else ""


def _grouped(text: str) -> str:
    """A part of a formula, in parentheses unless it is a word or a number."""
    return text if re.fullmatch(r"[\w.,]*", text) else f"({text})"
