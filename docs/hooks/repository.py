"""Files of the repository outside `docs/` that its pages link to, as part of the site.

A page links to `../CHANGELOG.md` as it stands in the repository, so that the link works where the
pages are read there. In the site such a file is a page or a download below `repository/`.
"""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = "repository"
# Pages of the navigation, whether a page links to them or not.
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(?<!`)(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_OUTSIDE = re.compile(
    r'<(?:script|img|iframe|source)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//'
)


def on_files(files, config, **_):
    """Called by MkDocs with all files of the site."""
    from mkdocs.structure.files import File

    for path in linked():
        where = f"{FOLDER}/{path}"
        if path.endswith(".md"):
            files.append(File.generated(config, where, content=(ROOT / path).read_text("utf-8")))
        else:
            files.append(File.generated(config, where, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Called by MkDocs with a page's Markdown."""
    return rewritten(markdown, page.file.src_uri)


def on_post_page(output, page, **_):
    """Called by MkDocs with a finished page: it may load nothing from another server."""
    found = _OUTSIDE.search(re.sub(r'<link[^>]* rel="canonical"[^>]*>', "", output))
    if found:
        raise ValueError(f"{page.file.src_uri} loads something from elsewhere: {found[0]}")
    return output


def linked():
    """Files outside `docs/` that pages link to, and theirs in turn: paths from the root."""
    found = list(ALWAYS)
    waiting = [f"docs/{path.relative_to(DOCS).as_posix()}" for path in sorted(DOCS.rglob("*.md"))]
    waiting += found
    while waiting:
        here = waiting.pop()
        for _, link in LINK.findall((ROOT / here).read_text("utf-8")):
            path = target(here, link)
            if path and not path.startswith("docs/") and path not in found and _is_file(path):
                found.append(path)
                if path.endswith(".md"):
                    waiting.append(path)
    return found


def rewritten(markdown, uri):
    """A page's Markdown with links that lead to where the files are in the site.

    Args:
        markdown: As it stands in the repository.
        uri: The page's path within the site's sources.
    """
    inside = uri.startswith(f"{FOLDER}/")
    here = uri.removeprefix(f"{FOLDER}/") if inside else f"docs/{uri}"

    def changed(found):
        text, link = found.groups()
        path = target(here, link)
        if path is None or (path.startswith("docs/") and not inside):
            return found[0]
        if path.startswith("docs/"):
            where = path.removeprefix("docs/")
        elif _is_file(path):
            where = f"{FOLDER}/{path}"
        else:
            return text[1:-1]  # a folder: the site has no page for it
        anchor = "#" + link.partition("#")[2] if "#" in link else ""
        return f"{text}({posixpath.relpath(where, posixpath.dirname(uri))}{anchor})"

    return LINK.sub(changed, markdown)


def target(here, link):
    """The path from the root that a link of a file leads to, None for an address or an anchor."""
    name = link.partition("#")[0]
    if not name or re.match(r"[a-z]+:", name):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), name))


def _is_file(path):
    return (ROOT / path).is_file()
