"""Draws the figures of the documentation: python docs/figures/draw.py

Each is plain SVG with shapes and text, so that it needs no font and no script from elsewhere.
"""

import html
from pathlib import Path

HERE = Path(__file__).parent
INK, SOFT, LINE = "#1c2b2a", "#5c6b6a", "#8aa09e"
PAPER, KEY, VALUE, MODEL, VOTE = "#ffffff", "#e3f1ee", "#fdf1d6", "#e8eaf2", "#cfe9d8"


class Drawing:
    """A picture that grows by shapes.

    Attributes:
        width: Of the picture, in units of its own.
        height: Of the picture.
    """

    def __init__(self, width, height):
        self.width, self.height, self._parts = width, height, []

    def text(self, x, y, words, size=14, fill=INK, anchor="middle", weight="normal"):
        """Words around a point."""
        self._parts.append(
            f'<text xml:space="preserve" x="{x}" y="{y}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}" font-weight="{weight}">{html.escape(words)}</text>'
        )

    def box(self, x, y, width, height, lines, fill=KEY, size=14, stroke=LINE):
        """A box with lines of words in its middle."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )
        first = y + height / 2 + size * 0.35 - (len(lines) - 1) * size * 0.6
        for number, line in enumerate(lines):
            self.text(x + width / 2, round(first + number * size * 1.2, 1), line, size)

    def arrow(self, x1, y1, x2, y2, dashed=False, colour=SOFT):
        """A line with a head at its end."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="1.6"'
            f'{dash} marker-end="url(#head)"/>'
        )

    def curve(self, path, colour=SOFT, width=2, head=False):
        """A free line, in the language of SVG."""
        end = ' marker-end="url(#head)"' if head else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{end}/>'
        )

    def svg(self):
        """The file."""
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0L10 5L0 10z" fill="{SOFT}"/></marker>'
        )
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'font-family="system-ui, sans-serif">\n<defs>{head}</defs>\n'
            f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>\n{body}\n</svg>\n'
        )


def knn_lm():
    """Entries, a query, its neighbors, their vote, and the mixture."""
    d = Drawing(860, 400)
    d.text(20, 28, "Once: the corpus becomes entries", 15, SOFT, "start", "bold")
    rows = [
        ("When error E42 appears,", "open"),
        ("If E42 stays, please", "open"),
        ("The pump needs", "oil"),
    ]
    for number, (context, value) in enumerate(rows):
        y = 42 + number * 40
        d.box(20, y, 220, 32, [context], PAPER)
        d.arrow(240, y + 16, 290, y + 16)
        d.box(292, y, 150, 32, ["key  f(context)"], KEY)
        d.box(446, y, 90, 32, [f"value  {value}"], VALUE)
    d.text(265, 54, "model", 12, SOFT)
    d.text(20, 210, "At each word: the state asks, the neighbors vote", 15, SOFT, "start", "bold")
    d.box(20, 226, 220, 36, ["When error E42 comes up,"], PAPER)
    d.arrow(240, 244, 290, 244)
    d.box(292, 226, 150, 36, ["query  q"], KEY)
    d.arrow(442, 238, 556, 120)
    d.text(560, 70, "nearest keys, by distance:", 13, SOFT, "start")
    d.box(560, 80, 280, 30, ["d 3    open    w 0.60"], VOTE)
    d.box(560, 114, 280, 30, ["d 4    open    w 0.35"], VOTE)
    d.box(560, 148, 280, 30, ["d 9    oil     w 0.05"], PAPER)
    d.arrow(700, 178, 700, 222)
    d.box(560, 226, 280, 36, ["p_kNN:  open 0.95   oil 0.05"], VOTE)
    d.arrow(367, 262, 367, 312)
    d.box(232, 316, 270, 36, ["p_LM:  the 0.30   open 0.10   ..."], MODEL)
    d.arrow(700, 262, 700, 312)
    d.box(560, 316, 280, 36, ["p = λ p_kNN + (1 − λ) p_LM"], "#f6d9cf")
    d.arrow(502, 334, 558, 334)
    d.text(700, 380, "with λ = 0.7:  open 0.695", 14, INK)
    return d


def retomaton():
    """Pointers from the entries whose token was chosen."""
    d = Drawing(860, 310)
    d.text(20, 28, "Two documents of the datastore, an entry a token", 15, SOFT, "start", "bold")
    first = ("open", "the", "winch", "cover", "and", "clear")
    second = ("open", "the", "valve", "slowly", "by", "hand")
    chosen = ("open", "the", "winch", "cover")
    for row, words in enumerate((first, second)):
        y = 48 + row * 74
        d.text(20, y + 24, f"document {row + 1}", 13, SOFT, "start")
        for number, word in enumerate(words):
            x = 120 + number * 118
            voted = number < 4 if row == 0 else number < 3
            d.box(x, y, 90, 38, [word], VOTE if voted else PAPER)
            if number < 5:
                goes_on = number < 4 if row == 0 else number < 2
                d.arrow(x + 90, y + 19, x + 116, y + 19, dashed=not goes_on)
    d.text(20, 228, "text written", 13, SOFT, "start")
    for number, word in enumerate(chosen):
        x = 120 + number * 118
        d.box(x, 208, 90, 34, [word], MODEL)
        d.text(
            x + 45,
            266,
            "search" if number == 0 else "pointers",
            13,
            INK if number == 0 else "#2c7a64",
        )
    d.text(590, 222, "“winch” was chosen:", 13, SOFT, "start")
    d.text(590, 240, "document 1 goes on,", 13, SOFT, "start")
    d.text(590, 258, "document 2 votes no more", 13, SOFT, "start")
    d.text(
        20,
        294,
        "One search; after it each entry whose token was chosen points to the entry after it.",
        13,
        SOFT,
        "start",
    )
    return d


def infini_gram():
    """The longest end of a text in the corpus, and what follows it."""
    d = Drawing(860, 230)
    d.text(
        20, 28, "The longest end of the text that stands in the corpus", 15, SOFT, "start", "bold"
    )
    d.box(20, 46, 190, 36, ["... if it stays, then"], PAPER)
    d.box(214, 46, 260, 36, ["open the winch cover and"], VOTE)
    d.box(478, 46, 60, 36, ["?"], MODEL)
    for number, (before, after) in enumerate(
        (("appears,", "clear"), ("morning,", "clear"), ("the lamp,", "look"))
    ):
        y = 110 + number * 38
        d.box(100, y, 110, 30, [before], PAPER, 13)
        d.box(214, y, 260, 30, ["open the winch cover and"], VOTE, 13)
        d.box(478, y, 80, 30, [after], VALUE, 13)
    d.arrow(560, 160, 608, 160)
    d.box(610, 142, 230, 36, ["p_∞:  clear 2/3   look 1/3"], VOTE)
    d.text(725, 204, "each count is a place in a document", 13, SOFT)
    return d


def knn_mt():
    """Entries of pairs, and a translation whose word names its source sentence."""
    d = Drawing(860, 330)
    d.text(20, 28, "Once: pairs become entries", 15, SOFT, "start", "bold")
    d.box(20, 44, 300, 36, ["Two men work on a wind cradle."], PAPER)
    d.box(20, 92, 300, 36, ["Zwei Männer arbeiten an einem ..."], PAPER)
    d.text(336, 68, "source", 12, SOFT, "start")
    d.text(336, 116, "target so far", 12, SOFT, "start")
    d.arrow(420, 62, 478, 80)
    d.arrow(420, 110, 478, 92)
    d.box(480, 66, 170, 40, ["key  f(source, target)"], KEY)
    d.box(654, 66, 190, 40, ["value  Brisenstuhl"], VALUE)
    d.text(20, 172, "Then: a new source is translated", 15, SOFT, "start", "bold")
    d.box(20, 188, 300, 36, ["A cyclist passes a wind cradle."], PAPER)
    d.box(20, 236, 300, 36, ["Ein Fahrradfahrer fährt an einem ..."], PAPER)
    d.arrow(320, 206, 478, 220)
    d.arrow(320, 254, 478, 232)
    d.box(480, 206, 170, 40, ["query"], KEY)
    d.arrow(565, 206, 565, 108)
    d.text(578, 160, "nearest key", 12, SOFT, "start")
    d.arrow(749, 106, 749, 204)
    d.box(654, 206, 190, 40, ["Brisenstuhl"], VOTE)
    d.text(844, 274, "from “... an einem Brisenstuhl.”", 13, SOFT, "end")
    d.text(844, 294, "⇐ Two men work on a wind cradle.", 13, SOFT, "end")
    return d


def evidence():
    """A word's probability divided among documents and the model."""
    d = Drawing(860, 250)
    d.text(20, 28, "p(“open”) = 0.718 has parts, and they sum to 1", 15, SOFT, "start", "bold")
    parts = [
        (560, "d1.txt  70%", "#9fd3b4"),
        (140, "d7.txt  17%", VOTE),
        (104, "model  13%", MODEL),
    ]
    x = 20
    for width, words, fill in parts:
        d.box(x, 46, width, 54, [words], fill)
        x += width + 4
    d.arrow(300, 100, 300, 146)
    d.box(20, 150, 560, 40, ["... When error code E42 appears, »open« the winch cover ..."], PAPER)
    d.text(300, 212, "the passage behind the largest part", 13, SOFT)
    d.arrow(652, 100, 652, 146)
    d.box(592, 150, 248, 40, ["λ w_i / p of each entry, summed"], PAPER, 13)
    d.text(716, 212, "before anything is left out", 13, SOFT)
    d.text(20, 240, "The model's own part, (1 − λ) p_LM / p, has no source.", 13, SOFT, "start")
    return d


def layers():
    """The rows that `lint-imports` checks."""
    rows = [
        ("command line", "cli"),
        ("for hosts", "hosting"),
        ("around it", "ask · hub · integrations · lab"),
        ("datastores", "building"),
        ("figures", "measure"),
        ("text", "generation"),
        ("sources", "evidence"),
        ("the vote", "mixture"),
        ("neighbors", "search · ray"),
        ("nearness", "index"),
        ("models", "engine"),
        ("documents", "corpus"),
        ("the folder", "store"),
        ("vocabulary", "settings · metrics · progress · errors · arrays · locks · printable"),
    ]
    d = Drawing(860, 46 * len(rows) + 70)
    d.box(
        150,
        10,
        640,
        34,
        ["page · server · plug-ins · datastores · benchmarks: the public names only"],
        PAPER,
        13,
    )
    for number, (name, modules) in enumerate(rows):
        y = 56 + number * 46
        d.text(138, y + 23, name, 13, SOFT, "end")
        d.box(150, y, 640, 36, [modules], (KEY, MODEL, VOTE, VALUE)[number % 4])
    d.arrow(825, 60, 825, 46 * len(rows) + 46)
    d.text(825, 46 * len(rows) + 64, "imports", 12, SOFT)
    return d


FIGURES = {
    "knn-lm": knn_lm,
    "retomaton": retomaton,
    "infini-gram": infini_gram,
    "knn-mt": knn_mt,
    "evidence": evidence,
    "layers": layers,
}


def main():
    for name, draw in FIGURES.items():
        (HERE / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
