"""Reads the blocks of code, links and anchors of the documentation's pages for the tests."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Pages that are no part of the documentation, but are on the site or linked from it.
OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", *(
    f"datastores/{name}README.md" for name in ("", "sqlite/", "glossary/")
))  # fmt: skip

_MARKDOWN = MarkdownIt("commonmark").enable("table")
_MARK = re.compile(r"<!-- (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: The page's path from the root.
        line: The line at which the block begins.
        language: The language of the code.
        code: The code.
        mark: The comment right before the block, such as "checked, not run: it needs the Hub".
    """

    page: str
    line: int
    language: str
    code: str
    mark: str

    @property
    def runs(self):
        return not self.mark.startswith("checked, not run")

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks_of(name):
    """Returns all blocks of code of a page, in order."""
    found, mark = [], ""
    for token in _MARKDOWN.parse((ROOT / name).read_text("utf-8")):
        if token.type == "html_block":
            one = _MARK.fullmatch(token.content.strip())
            mark = one[1] if one else ""
        elif token.type in ("fence", "code_block"):
            language = token.info.strip() or "nothing"
            found.append(Block(name, token.map[0] + 1, language, token.content, mark))
            mark = ""
        elif token.level == 0:
            mark = ""
    return found


def commands_of(block):
    """Returns the commands of a shell block, each as a list of words."""
    found, variables = [], {}
    for line in block.code.replace("\\\n", " ").splitlines():
        words = [
            re.sub(r"\$(\w+)", lambda name: variables[name[1]], word)
            for word in shlex.split(line, comments=True)
        ]
        if words and re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words[0].partition("=")
            variables[name] = value
            continue
        while "&&" in words:
            cut = words.index("&&")
            found.append(words[:cut])
            words = words[cut + 1 :]
        if words:
            found.append(words)
    return found


def links_of(name):
    """Returns the addresses of all links and pictures of a page."""
    found = []
    for token in _MARKDOWN.parse((ROOT / name).read_text("utf-8")):
        for child in token.children or ():
            if child.type == "link_open":
                found.append(child.attrs["href"])
            elif child.type == "image":
                found.append(child.attrs["src"])
    return found


def anchors_of(text):
    """Returns the anchors of a page's headings, which GitHub and MkDocs make in the same way."""
    tokens = _MARKDOWN.parse(text)
    headings = [
        tokens[number + 1].content
        for number, token in enumerate(tokens)
        if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\s-]", "", one).strip().lower().replace(" ", "-") for one in headings}
