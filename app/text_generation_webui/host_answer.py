"""Knows the tokens of an answer that the host wrote, and traces them.

The host gives an extension the tokens of each step, and at the end the text that it shows. No step
sees the last token, and the text may be cut or stand behind an earlier one. So both are compared.
"""

from __future__ import annotations

import html
from typing import Any

# How many of the latest steps are compared with the text.
_STEPS = 64
# How many passages are kept for each token.
_PASSAGES = 3


class Answer:
    """One answer of the host; as a logits processor it records its tokens and changes nothing."""

    def __init__(self, knn: Any, metric: str, tokenizer: Any, start: int) -> None:
        self._knn, self._metric = knn, metric
        self._tokenizer, self._start = tokenizer, start
        self._texts: tuple[str, ...] = ()
        self._steps: dict[int, Any] = {}

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Records the text so far, int64 [rows, length]."""
        self._steps[input_ids.shape[-1]] = input_ids
        return scores

    @property
    def begun(self) -> bool:
        """Whether the host wrote a token of it."""
        return bool(self._steps)

    def ended(self, text: str) -> None:
        """Takes the whole answer: as it is, or in the HTML form in which the host shows it."""
        self._texts = (text, html.unescape(text)) if text else ()

    def page(self) -> str | None:
        """Returns the answer with its sources as an HTML document; None if it is not known."""
        trace = self._trace()
        if trace is None:
            return None
        from knn_logits_app.views import chat_page

        return str(chat_page(trace, self._metric))

    def _trace(self) -> Any:
        # The host may still write an answer that it has given up.
        steps = dict(self._steps)
        latest = [steps[length] for length in sorted(steps, reverse=True)][:_STEPS]
        # At last a text is enough that goes on for more than a token.
        ways = [(text, most) for most in (1, None) for text in self._texts] or [(None, 1)]
        for text, most in ways:
            for ids in latest:
                whole = ids if text is None else self._whole(ids, text, most)
                if whole is not None and whole.shape[0] == 1 and whole.shape[-1] > self._start:
                    return self._knn.trace(whole, self._tokenizer, max_neighbors=_PASSAGES)[0]
        return None

    def _whole(self, ids: Any, text: str, most: int | None) -> Any:
        """Returns the tokens of a text; None if the tokens of a step are not part of it.

        They are not if the step was a draft that was rejected.
        """
        import torch

        written = self._written(ids)
        rest = _after(text, written)
        if rest is None:
            # A stop text cuts an answer, and the host may have written on for some tokens.
            text = text.strip()
            if not text or not written.lstrip().startswith(text):
                return None
            ends = range(self._start + 1, ids.shape[-1] + 1)
            return next(
                ids[:, :end]
                for end in ends
                if self._written(ids[:, :end]).lstrip().startswith(text)
            )
        last = self._tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
        if most is not None and len(last) > most:
            return None
        return torch.cat([ids, ids.new_tensor([last])], dim=-1) if len(last) == 1 else ids

    def _written(self, ids: Any) -> str:
        return str(self._tokenizer.decode(ids[0, self._start :], skip_special_tokens=True))


def _after(text: str, written: str) -> str | None:
    """Returns the text after what some tokens said; None if they did not say a part of it."""
    bare = written.lstrip()
    for whole, start in ((text, written), (text.lstrip(), bare)):
        if whole.startswith(start):
            return whole[len(start) :]
    place = text.rfind(bare) if bare else -1
    return None if place < 0 else text[place + len(bare) :]
