"""Reads e-mail: sender, recipients, date, subject and text."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any

from knn_logits.corpus.documents import prose
from knn_logits.corpus.parsers import Begin, Left, Part, Text, clean
from knn_logits.corpus.parsers.markup import texts_of
from knn_logits.corpus.parsers.prose import flowing
from knn_logits.corpus.rows import UnreadableError
from knn_logits.corpus.texts import decoded

# The time to read a header grows with the square of its length.
_LONGEST_HEADER = 10_000
# HTML is read that has this number of times the words of the plain text.
_MORE_WORDS = 2
_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def read(stream: Any) -> Iterator[Part]:
    message: Any = BytesParser(policy=_Policy()).parse(stream)
    if not message.keys():
        raise UnreadableError("not an e-mail: it has no headers; rename it to .txt")
    yield Begin(_header(message, "Subject") or None)
    for one in _messages(message):
        if one is not message:
            yield Text("\n", "")
        headers = {name: _header(one, name) for name in _HEADERS}
        lines = [f"{name}: {value}" for name, value in headers.items() if value]
        yield Text("\n".join([*lines, "", ""]))
        for text in _body(one):
            yield text._replace(place="", fragment="")
    attached = [
        part
        for part in message.walk()
        if part.get_content_disposition() == "attachment"
        and part.get_content_type() != "message/rfc822"
    ]
    if attached:
        yield Left("", f"attachments are not read ({len(attached)}): save them as files", False)


class _Policy(policy.EmailPolicy):
    """That of Python, which reads the beginning of a longer header, and one in raw Latin-1."""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        raw = value[:_LONGEST_HEADER].encode("utf-8", "surrogateescape")
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError:
            value = raw.decode("cp1252", "replace")
        return super().header_fetch_parse(name, value)


def _messages(message: EmailMessage) -> Iterator[EmailMessage]:
    yield message
    for part in message.walk():
        inner = part.get_payload() if part.get_content_type() == "message/rfc822" else None
        if isinstance(inner, list) and inner and isinstance(inner[0], EmailMessage):
            yield inner[0]


def _header(message: EmailMessage, name: str) -> str:
    try:
        return clean(" ".join(str(message.get(name, "")).split()))[:1000]
    except (ValueError, AttributeError, TypeError, IndexError, LookupError):
        return ""  # a header that no standard allows


def _body(message: EmailMessage) -> Iterator[Text]:
    """The text of a message: of two forms HTML, if the plain one only says that there is HTML."""
    plain, html = (message.get_body((kind,)) for kind in ("plain", "html"))
    content = _content(plain if plain is not None else message) if plain or not html else ""
    texts = texts_of(_content(html))[1] if html is not None else []
    words = sum(len(text.text.split()) for text in texts)
    if words > _MORE_WORDS * len(content.split()):
        yield from texts
        return
    for kind, text, _ in flowing(prose(io.StringIO(clean(content).strip() + "\n"))):
        yield Text(text, kind)


def _content(part: Any) -> str:
    """The text of a part, in the encoding that it names, or that is recognised."""
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes) or part.get_content_maintype() != "text":
        return ""
    named = part.get_content_charset()
    with contextlib.suppress(UnreadableError, UnicodeError):
        return decoded(payload, named if named != "us-ascii" else None)
    return payload.decode("utf-8", "replace")
