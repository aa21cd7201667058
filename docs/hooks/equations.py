"""Equations as MathML, which browsers draw by themselves: no script, and nothing from a CDN.

Arithmatex finds `$...$` and `$$...$$`, which GitHub shows as well. This makes MathML of what it
found.
"""

import html
import re

from latex2mathml.converter import convert

_FOUND = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)


def on_page_content(content, **_):
    """Called by MkDocs with a page's HTML."""
    return _FOUND.sub(_mathml, content)


def _mathml(found):
    block = found["open"] == "["
    return convert(html.unescape(found["latex"]).strip(), display="block" if block else "inline")
