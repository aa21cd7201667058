"""Cuts text of people into tokens. None of it becomes a control token.

A tokenizer takes "<|im_end|>" in a text for the token that ends a chat's turn. A document or a
message with it would end an answer, or speak as another. So such a text is cut again, by its
characters alone. Every other text is cut as the tokenizer cuts it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from knn_logits.arrays import Array

# A character for private use stands behind the first letter of a control token that a message
# spells. So neither the template nor the tokenizer takes it for one.
_MARK = "\ue0f0"


def control_ids(tokenizer: Any) -> frozenset[int]:
    """Returns the tokens that control a model, such as the token that ends a text.

    The token for unknown words is not among them unless it has such a role as well.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    ids = {number for number, token in added.items() if token.special}
    ids |= set(getattr(tokenizer, "all_special_ids", ()))
    roles = [getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "eos", "pad")]
    unknown = getattr(tokenizer, "unk_token_id", None)
    return frozenset(ids if unknown in roles else ids - {unknown})


def cut_texts(
    tokenizer: Any,
    texts: Sequence[str],
    *,
    around: bool = True,
    target: bool = False,
    ends: bool = False,
) -> tuple[list[list[int]], list[Array | None]]:
    """Cuts texts into tokens.

    Args:
        tokenizer: A tokenizer of transformers.
        texts: The texts.
        around: Whether the tokenizer adds the tokens that it puts around every text.
        target: Whether the texts are targets of an encoder-decoder model, with those tokens.
        ends: Whether to find where each token ends.

    Returns:
        The ids of each text, and where each of its tokens ends, in characters, int64 [tokens]. The
        ends are None if they are not asked for, or the tokenizer does not tell them.
    """

    def cut(some: Sequence[str], **more: Any) -> Any:
        if target:
            return tokenizer(text_target=list(some), verbose=False, **more)
        return tokenizer(
            list(some),
            add_special_tokens=around,
            return_attention_mask=False,
            verbose=False,
            **more,
        )

    control = control_ids(tokenizer)
    done = cut(texts)
    rows: list[list[int]] = done["input_ids"]
    encodings = getattr(done, "encodings", None) if ends else None
    found = [None if encodings is None else _ends(one) for one in encodings or rows]
    suspects = [number for number, ids in enumerate(rows) if not control.isdisjoint(ids)]
    if not suspects:
        return rows, found
    added = _count(control, cut([""])["input_ids"][0]) if around or target else 0
    for number in suspects:
        if _count(control, rows[number]) <= added:
            continue
        again = cut([texts[number]], split_special_tokens=True, return_special_tokens_mask=True)
        ids, mask = again["input_ids"][0], again["special_tokens_mask"][0]
        parts = [
            [one] if one not in control or put else _characters(tokenizer, one)
            for one, put in zip(ids, mask if around or target else [0] * len(ids), strict=True)
        ]
        rows[number] = [one for part in parts for one in part]
        if encodings is not None:
            lengths = [len(part) for part in parts]
            found[number] = np.repeat(_ends(again.encodings[0]), lengths)
    return rows, found


def text_ids(tokenizer: Any, text: str, *, around: bool = True) -> list[int]:
    """Cuts a text into tokens, none of which is a control token that the text spells.

    Args:
        tokenizer: A tokenizer of transformers.
        text: The text, such as a prompt.
        around: Whether the tokenizer adds the tokens that it puts around every text.

    Returns:
        The ids.
    """
    return cut_texts(tokenizer, [text], around=around)[0][0]


def chat_ids(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **settings: Any) -> list[int]:
    """Cuts a chat into tokens by its template. Only the template writes control tokens.

    Args:
        tokenizer: A tokenizer of transformers with a chat template.
        messages: The messages, each with a `role` and a `content`.
        settings: Further arguments of the tokenizer's `apply_chat_template`.

    Returns:
        The ids. They are those of `apply_chat_template` if no message spells a control token.
    """
    names = tokenizer.convert_ids_to_tokens(sorted(control_ids(tokenizer)))
    spelt = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")

    def marked(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return spelt.sub(lambda found: found[0][0] + _MARK + found[0][1:], value.replace(_MARK, ""))

    safe = [{name: marked(value) for name, value in one.items()} for one in messages]
    if safe == [dict(one) for one in messages]:
        found = tokenizer.apply_chat_template(list(messages), return_dict=True, **settings)
        return list(found["input_ids"])
    text = tokenizer.apply_chat_template(safe, tokenize=False, **settings)
    done = tokenizer([text], add_special_tokens=False, verbose=False)
    return _without_marks(tokenizer, text, done)


def _without_marks(tokenizer: Any, text: str, done: Any) -> list[int]:
    """Returns the tokens of a text, without those of the marks alone."""
    (ids,), (encoding,) = done["input_ids"], done.encodings
    control = control_ids(tokenizer)
    kept = []
    for token, (start, end) in zip(ids, encoding.offsets, strict=True):
        if token in control and _MARK in text[start : end + 1]:
            kept += _characters(tokenizer, token)
        elif text[start:end] != _MARK:
            kept.append(token)
    return kept


def with_control_tokens(
    tokenizer: Any, tokens: Array, first: Array, *, target: bool = False
) -> Array:
    """Finds the documents that hold control tokens, which their text must have spelt.

    Earlier versions stored them so. Those that the tokenizer puts around every text do not count.

    Args:
        tokenizer: A tokenizer of transformers.
        tokens: The tokens of all documents, integers [tokens].
        first: Where each document begins in them, int64 [documents].
        target: Whether the documents are targets of an encoder-decoder model.

    Returns:
        The numbers of these documents, int64, ascending.
    """
    control = control_ids(tokenizer)
    around = tokenizer(text_target="") if target else tokenizer("", verbose=False)
    counts = np.concatenate([[0], np.cumsum(np.isin(tokens, sorted(control)))])
    inside = np.diff(counts[[*first, len(tokens)]])
    found: Array = np.flatnonzero(inside > _count(control, around["input_ids"]))
    return found


def _count(control: frozenset[int], ids: Sequence[int]) -> int:
    return sum(one in control for one in ids)


def _characters(tokenizer: Any, token: int) -> list[int]:
    """Spells a control token that the tokenizer's model itself knows as a word."""
    if token == getattr(tokenizer, "unk_token_id", None):
        return [token]
    spelt = tokenizer.convert_tokens_to_ids(list(tokenizer.convert_ids_to_tokens(token)))
    return [one for one in spelt if one is not None]


def _ends(encoding: Any) -> Array:
    """Returns the position where each token ends in its text, in characters."""
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    # A token without text of its own ends where the token before it does.
    return np.maximum.accumulate(offsets[:, 1])
