"""Cuts text into tokens, none of which is a control token: "<|im_end|>" is cut by characters."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.corpus.documents import Block, Document

# A character for private use stands behind each sign of messages of which one spells a control
# token. So neither the template nor the tokenizer takes it for one.
_MARK = "\ue0f0"

# By tokenizer its size, its template, and the added tokens that the template writes.
_WRITTEN: WeakKeyDictionary[Any, tuple[int, Any, frozenset[int]]] = WeakKeyDictionary()
_TURNS = [("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")]


def control_ids(tokenizer: Any, template: str | None = None) -> frozenset[int]:
    """Returns the tokens that control a model.

    These are the special tokens, such as the end of a text, and every added token that the
    chat template writes. `template` takes the place of the tokenizer's own.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    ids = {number for number, token in added.items() if token.special}
    ids |= special_ids(tokenizer)
    roles = [getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "eos", "pad")]
    unknown = getattr(tokenizer, "unk_token_id", None)
    ids = ids if unknown in roles else ids - {unknown}
    template = template or getattr(tokenizer, "chat_template", None)
    if template is None:
        return frozenset(ids)
    cached = _WRITTEN.get(tokenizer)
    if cached is None or cached[:2] != (len(added), template):
        cached = len(added), template, _written(tokenizer, added, template)
        _WRITTEN[tokenizer] = cached
    return frozenset(ids | cached[2])


def _written(tokenizer: Any, added: Mapping[int, Any], template: Any) -> frozenset[int]:
    """Finds the added tokens that a template writes and that are neither words nor white space."""
    turns = [{"role": role, "content": content} for role, content in _TURNS]
    found: set[int] = set()
    for first, last in ((0, 4), (1, 4), (1, 2)):  # some templates take no system message
        for prompts in (True, False):
            try:
                text = tokenizer.apply_chat_template(
                    turns[first:last],
                    tokenize=False,
                    add_generation_prompt=prompts,
                    chat_template=template,
                )
            except Exception:  # a template can raise any error
                continue
            found |= set(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    names = {number: token.content.strip() for number, token in added.items() if number in found}
    return frozenset(number for number, name in names.items() if name and not name.isalnum())


def cut_texts(
    tokenizer: Any, texts: Sequence[str], **settings: bool
) -> tuple[list[list[int]], list[Array | None]]:
    """Cuts texts, of which a tokenizer takes some at once; see `_cut_batch` for the settings."""
    rows: list[list[int]] = []
    ends: list[Array | None] = []
    for first in range(0, len(texts), _PARTS_AT_ONCE):
        cut, where = _cut_batch(tokenizer, texts[first : first + _PARTS_AT_ONCE], **settings)
        rows, ends = rows + cut, ends + where
    return rows, ends


def _cut_batch(
    tokenizer: Any,
    texts: Sequence[str],
    *,
    around: bool = True,
    target: bool = False,
    ends: bool = False,
) -> tuple[list[list[int]], list[Array | None]]:
    """Cuts texts or targets, with the tokens `around` a text, and finds where each token ends."""

    def cut(batch: Sequence[str], **options: Any) -> Any:
        if target:
            return tokenizer(text_target=list(batch), verbose=False, **options)
        return tokenizer(
            list(batch),
            add_special_tokens=around,
            return_attention_mask=False,
            verbose=False,
            **options,
        )

    control = control_ids(tokenizer)
    done = cut(texts)
    rows: list[list[int]] = done["input_ids"]
    encodings = getattr(done, "encodings", None) if ends else None
    token_ends = [None if encodings is None else _ends(encoding) for encoding in encodings or rows]
    suspects = [number for number, ids in enumerate(rows) if not control.isdisjoint(ids)]
    if not suspects:
        return rows, token_ends
    added = _count(control, cut([""])["input_ids"][0]) if around or target else 0
    for number in suspects:
        if _count(control, rows[number]) <= added:
            continue
        again = cut([texts[number]], split_special_tokens=True, return_special_tokens_mask=True)
        ids, mask = again["input_ids"][0], again["special_tokens_mask"][0]
        parts = [
            [token] if token not in control or put else _characters(tokenizer, token)
            for token, put in zip(ids, mask if around or target else [0] * len(ids), strict=True)
        ]
        rows[number] = [token for part in parts for token in part]
        if encodings is not None:
            lengths = [len(part) for part in parts]
            token_ends[number] = np.repeat(_ends(again.encodings[0]), lengths)
    return rows, token_ends


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
    control = control_ids(tokenizer, settings.get("chat_template"))
    words = any(str(name).isalnum() for name in tokenizer.convert_ids_to_tokens(sorted(control)))
    signs = re.compile("." if words else r"[^\w\s]|_", re.DOTALL)

    def cut(changed: Sequence[Mapping[str, Any]]) -> tuple[str, Any, int]:
        text = tokenizer.apply_chat_template(list(changed), tokenize=False, **settings)
        done = tokenizer([text], add_special_tokens=False, verbose=False)
        return text, done, _count(control, done["input_ids"][0])

    def marked(value: Any, name: str | None = None) -> Any:
        if isinstance(value, Mapping):
            return {name: marked(part, name) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [marked(part) for part in value]
        # A template compares roles.
        if not isinstance(value, str) or name in ("role", "type"):
            return value
        return signs.sub(rf"\g<0>{_MARK}", value.replace(_MARK, ""))

    _, done, number = cut(messages)
    # With a mark behind each sign, no message spells a control token.
    text, marks, allowed = cut([marked(message) for message in messages])
    if number == allowed:
        return list(done["input_ids"][0])
    return _without_marks(tokenizer, control, text, marks)


def _without_marks(tokenizer: Any, control: frozenset[int], text: str, done: Any) -> list[int]:
    """Returns the tokens of a text, without those of the marks alone."""
    (ids,), (encoding,) = done["input_ids"], done.encodings
    left = []
    for token, (start, end) in zip(ids, encoding.offsets, strict=True):
        if token in control and _MARK in text[start : end + 1]:
            left += _characters(tokenizer, token)
        elif text[start:end] != _MARK:
            left.append(token)
    return left


def _count(control: frozenset[int], ids: Sequence[int]) -> int:
    return sum(token in control for token in ids)


def _characters(tokenizer: Any, token: int) -> list[int]:
    """Spells a control token that the tokenizer's model itself knows as a word."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    if token == unknown:
        return [token]
    name = tokenizer.convert_ids_to_tokens(token)
    spelt = tokenizer.convert_tokens_to_ids(list(name))
    if not {None, unknown}.isdisjoint(spelt):
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        spelt = [one for letter in name for one in tokenizer(letter, **options)["input_ids"]]
    return [token for token in spelt if token is not None]


def _ends(encoding: Any) -> Array:
    """Returns the position where each token ends in its text, in characters."""
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    # A token without text of its own ends where the token before it does.
    return np.maximum.accumulate(offsets[:, 1])


# A tokenizer needs several times a text's size in memory, so a huge text is cut in parts.
_PART = 1 << 20
_BLOCK = 1 << 17
_PARTS_AT_ONCE = 64
_CHARACTERS_AT_ONCE = 4 << 20
_BREAK = re.compile(r"\n(?=\S)")


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Finds the tokens that a tokenizer puts before and after every text."""
    plain = tokenizer("A 1", add_special_tokens=False)["input_ids"]
    whole = tokenizer("A 1", add_special_tokens=True)["input_ids"]
    places = range(len(whole) - len(plain) + 1)
    start = next((at for at in places if whole[at : at + len(plain)] == plain), len(whole))
    return list(whole[:start]), list(whole[start + len(plain) :])


def special_ids(tokenizer: Any) -> set[int]:
    """Returns the tokens of a tokenizer's own, such as the end of a text."""
    return set(getattr(tokenizer, "all_special_ids", ()))


def _parts(text: str, size: int | None = None) -> Iterator[str]:
    start, size = 0, size or _PART
    while len(text) - start > size:
        line_end = _BREAK.search(text, start + size)
        if line_end is None:
            break
        yield text[start : line_end.end()]
        start = line_end.end()
    yield text[start:]


def tokenize(
    tokenizer: Any, documents: Iterable[Document]
) -> Iterator[tuple[Document, list[int], list[int]]]:
    """Cuts documents into tokens, those around a text included, and finds where blocks begin."""
    before, after = special_tokens(tokenizer)
    for group in _groups(documents):
        texts = [part for document, parts in group for part in parts]
        placed = any(tuple(document.blocks) not in ((), (Block(0),)) for document, _ in group)
        cut, ends = cut_texts(tokenizer, texts, around=False, ends=placed)
        at = 0
        for document, parts in group:
            span = slice(at, at + len(parts))
            at += len(parts)
            ids = [token for part in cut[span] for token in part]
            places = [len(before) + token for token in _places(document, parts, ends[span])]
            yield document, [*before, *ids, *after], places


def _places(
    document: Document, parts: Sequence[str], ends: Sequence[Array | None]
) -> Iterator[int]:
    first = token = 0
    waiting = deque(document.blocks)
    for part, token_ends in zip(parts, ends, strict=True):
        if token_ends is None:
            return
        while waiting and waiting[0].start < first + len(part):
            start = waiting.popleft().start - first
            yield token + int(np.searchsorted(token_ends, start, side="right"))
        first, token = first + len(part), token + len(token_ends)


def token_blocks(tokenizer: Any, text: str, around: tuple[list[int], list[int]]) -> Iterator[Array]:
    """Yields the tokens of one document part by part. Parts are cut at the ends of lines."""
    before, after = around
    if before:
        yield np.array(before, np.int32)
    for part in _parts(text, _BLOCK):
        yield np.array(text_ids(tokenizer, part, around=False), np.int32)
    if after:
        yield np.array(after, np.int32)


def _groups(documents: Iterable[Document]) -> Iterator[list[tuple[Document, list[str]]]]:
    group: list[tuple[Document, list[str]]] = []
    size = 0
    for document in documents:
        parts = list(_parts(document.text))
        group.append((document, parts))
        size += len(document.text)
        if len(group) >= _PARTS_AT_ONCE or size >= _CHARACTERS_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def end_tokens(config: Any, vocabulary: int) -> list[int]:
    """Returns the tokens that end a sequence, without those that the model has no score for."""
    return _marks(config, ("eos_token_id",), vocabulary)


def control_tokens(model: nn.Module, vocabulary: int) -> list[int]:
    """Returns the tokens that begin, end or pad a sequence, or part the turns of a chat."""
    tokens = set()
    for name in ("generation_config", "config"):
        config = getattr(model, name, None)
        tokens |= set(_marks(config, ("bos_token_id", "eos_token_id", "pad_token_id"), vocabulary))
    return sorted(tokens)


def _marks(config: Any, names: tuple[str, ...], vocabulary: int) -> list[int]:
    tokens: list[Any] = []
    for name in names:
        value = getattr(config, name, None)
        value = value.flatten().tolist() if isinstance(value, Tensor) else value
        tokens += value if isinstance(value, (list, tuple)) else [value]
    return [int(id) for id in tokens if id is not None and 0 <= int(id) < vocabulary]
