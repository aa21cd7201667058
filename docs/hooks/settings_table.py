"""The table of the settings in `guides/settings.md`, made of their declarations.

`python docs/hooks/settings_table.py` writes it. A test fails where the page has another one.
"""

from pathlib import Path

from knn_logits.settings.registry import settings_for

PAGE = Path(__file__).parents[1] / "guides" / "settings.md"
_BEGIN, _END = "<!-- settings: begin -->\n", "<!-- settings: end -->"
_PLACES = {"build": "`build`", "request": "the server's requests", "page": "the page"}


def table():
    """The rows: what a setting does, its values, its default, and who else may set it."""
    rows = ["| setting | what it does | values | default | also set by |", "|---|---|---|---|---|"]
    for name, one in settings_for().items():
        cells = (f"`{name}`", one.help, one.range or _kind(one), _default(one), _places(one))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _kind(one):
    return {bool: "on or off", tuple: "a list"}.get(one.kind, "")


def _default(one):
    value = one.default
    word = "" if value in (None, ()) else one.shown(value)
    return f"the datastore's, else {word}" if one.stored else word


def _places(one):
    return ", ".join(words for place, words in _PLACES.items() if place in one.set_by)


def with_table(text):
    """The text of the page with the present table."""
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    return text[:begin] + table() + text[end:]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
