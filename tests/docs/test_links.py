"""Links and anchors of the documentation lead somewhere. Nothing is fetched."""

import re

import pytest

import knn_logits
from docs.pages import DOCS, NAMES, OTHERS, ROOT, anchors_of, links_of
from knn_logits import hosting

# The page that is made from the command line's application.
MADE = "docs/reference/command-line.md"


@pytest.fixture(scope="module")
def anchors(hook):
    """The anchors of a page by its path from the root."""
    made = anchors_of(hook("docs/hooks/command_line.py").page())

    def found(path):
        if path == MADE:
            return made
        text = (ROOT / path).read_text("utf-8")
        objects = {
            f"knn_logits.{name}" for name in re.findall(r"^::: knn_logits\.(\w+)$", text, re.M)
        }
        return anchors_of(text) | objects

    return found


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_links_lead_to_files_and_headings(name, anchors):
    folder = (ROOT / name).parent
    for link in links_of(name):
        if re.match(r"(https|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else ROOT / name
        assert target.is_relative_to(ROOT), f"{name}: {link} leads out of the repository"
        inside = target.relative_to(ROOT).as_posix()
        assert target.exists() or inside == MADE, f"{name}: {link} leads nowhere"
        if anchor and inside.endswith(".md"):
            assert anchor in anchors(inside), f"{name}: {link}: no such heading"


def test_addresses_are_whole():
    for name in [*NAMES, *OTHERS]:
        for link in links_of(name):
            assert "ADDRESS" not in link
            if ":" in link.split("/")[0]:
                assert re.match(r"https://[a-z0-9.-]+\.[a-z]+(/|$)", link), f"{name}: {link}"


def test_the_reference_has_each_public_name_once():
    text = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").rglob("*.md"))
    found = [
        place.rpartition(".")[2]
        for place in re.findall(r"^::: (knn_logits[\w.]+)$", text, re.MULTILINE)
    ]
    assert len(found) == len(set(found))
    errors = {name for name in knn_logits.__all__ if name.endswith("Error")}
    assert {*knn_logits.__all__, *hosting.__all__} - errors <= {*found}
