"""Makes an answer an HTML document with coloured words and the passages behind each word.

The document loads nothing from elsewhere. So it works in any program that shows a page in a frame.
"""

from __future__ import annotations

from knn_logits import SequenceTrace
from knn_logits_app import bundle, views

# The most tokens of a frame, since a program keeps the frame with its chat.
_TOKENS = 500


def frame(sequence: SequenceTrace, metric: str = "l2") -> str:
    """Returns the HTML document of an answer."""
    return bundle.alone(views.chat_frame(sequence, metric, _TOKENS))
