"""Reads e-mail: sender, recipients, date, subject and text. A mailbox gives every message."""

from __future__ import annotations

import mailbox
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from knn_logits.corpus.parsers import Begin, Block, Left, Part, clean
from knn_logits.corpus.parsers.markup import blocks_of
from knn_logits.corpus.rows import Schema, UnreadableError

# The time to read a header grows with the square of its length.
_LONGEST_HEADER = 10_000
_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def read(path: Path, schema: Schema) -> Iterator[Part]:
    del schema  # a message names its own encoding
    with path.open("rb") as file:
        message = _parsed(file)
    if not message.keys():
        raise UnreadableError("not an e-mail: it has no headers; rename it to .txt")
    yield from _parts(message, 0, 1.0)


def read_mailbox(path: Path, schema: Schema) -> Iterator[Part]:
    """Reads a mailbox in the mbox format, one document for each message that is not empty."""
    del schema
    messages = mailbox.mbox(path, factory=_parsed, create=False)
    keys = messages.keys()
    empty = 0
    for number, key in enumerate(keys, start=1):
        message: Any = messages.get(key)
        parts = list(_parts(message, number, number / len(keys)))
        if any(isinstance(part, Block) and part.text.strip() for part in parts):
            yield from parts
        else:  # a mailbox may have a great many of these
            empty += 1
            yield from (part for part in parts if isinstance(part, Left))
    if not keys:
        raise UnreadableError("not a mailbox: no line begins with 'From '; rename it to .txt")
    if empty:
        yield Left(f"{empty:,} of {len(keys):,} messages", "empty")


class _Policy(policy.EmailPolicy):
    """That of Python, which reads the beginning of a longer header."""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        return super().header_fetch_parse(name, value[:_LONGEST_HEADER])


def _parsed(file: Any) -> Any:
    return BytesParser(policy=_Policy()).parse(file)


def _parts(message: EmailMessage, number: int, done: float) -> Iterator[Part]:
    headers = {name: _header(message, name) for name in _HEADERS}
    yield Begin(headers["Subject"] or None, number)
    lines = [f"{name}: {value}" for name, value in headers.items() if value]
    yield Block("\n".join([*lines, "", _body(message), ""]), done=done)
    attached = [
        clean(str(part.get_filename() or part.get_content_type()))[:80].replace("\n", " ")
        for part in message.walk()
        if part.get_content_disposition() == "attachment"
    ]
    if attached:
        where = f"message {number}" if number else "the message"
        names = ", ".join(attached[:3]) + (", …" if len(attached) > 3 else "")
        yield Left(where, f"attachments are not read ({names}): save them as files", False)


def _header(message: EmailMessage, name: str) -> str:
    try:
        return clean(" ".join(str(message.get(name, "")).split()))[:1000]
    except (ValueError, AttributeError, TypeError, IndexError, LookupError):
        return ""  # a header that no standard allows


def _body(message: EmailMessage) -> str:
    try:
        part = message.get_body(("plain", "html"))
        if part is None:
            return ""
        content = part.get_content()
    except (LookupError, ValueError, AttributeError, TypeError):
        payload = message.get_payload(decode=True)
        return clean(payload.decode("utf-8", "replace") if isinstance(payload, bytes) else "")
    if part.get_content_type() == "text/html":
        content = "".join(block.text for block in blocks_of(str(content))[1])
    return clean(str(content)).strip()
