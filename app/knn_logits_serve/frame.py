"""An answer as an HTML document of its own: coloured words, and the passages behind each.

It loads nothing from anywhere, and works wherever a host draws a page of its own inside a frame.
"""

from __future__ import annotations

from knn_logits import SequenceTrace
from knn_logits_app import bundle, views

# Tokens that a frame holds: a host keeps it with the chat.
_TOKENS = 500


def frame(sequence: SequenceTrace, metric: str = "l2") -> str:
    """The document.

    Args:
        sequence: The answer.
        metric: How the datastores compare keys.
    """
    return bundle.alone(views.chat_frame(sequence, metric, _TOKENS))
