"""Makes every text of the demo: text to train on, the two corpora, and the questions.

All of it is invented, and all of it follows from seeds. Names, error codes and part numbers are
split in two by a fixed rule: one in eight is kept for the corpora, and training text has none of
them.

    python datastores/demo/text.py          # writes the corpora and the questions anew
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import words

HERE = Path(__file__).parent
KINDS = {"manual": ("error", "part"), "chronicle": ("town", "person")}
DOCUMENTS = {"error": 110, "part": 90, "town": 110, "person": 90}
QUESTIONS = 300
_ENDS = {
    "town": words.TOWN_ENDS,
    "person": words.PERSON_ENDS,
    "river": words.RIVER_ENDS,
    "firm": words.FIRM_ENDS,
    "machine": words.TOWN_ENDS,
    "country": ["ia", "mark", "land", "or", "any", "aria", "onia"],
}
_STARTS = frozenset(words.STARTS)


@dataclass(frozen=True)
class Thing:
    """What a document is about: an error code, a part, a town or a person, and its facts."""

    kind: str
    name: str
    facts: dict[str, str]


@dataclass(frozen=True)
class World:
    """A machine or a country with its things."""

    kind: str
    name: str
    things: list[Thing]


@dataclass(frozen=True)
class Page:
    """A document, and the pattern that states each of its facts."""

    thing: Thing
    text: str
    patterns: dict[str, str]


def is_kept(name: str) -> bool:
    """Whether a name, or the digits of a code, is kept for the corpora."""
    return zlib.crc32(name.encode()) % 8 == 0


def _digits(name: str) -> str:
    return name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")


def _split(name: str, ends: list[str]) -> tuple[str, str]:
    """A name's beginning and its end."""
    end = next(e for e in sorted(ends, key=len) if name.endswith(e) and name[: -len(e)] in _STARTS)
    return name[: -len(end)], end


class Namer:
    """Draws names and numbers, either only kept ones or only others.

    With `narrow`, names share their beginnings and numbers most of their digits, so that telling
    them apart takes every part of them.
    """

    def __init__(self, rng: random.Random, kept: bool, narrow: bool = False) -> None:
        self.rng, self.kept = rng, kept
        self.starts = rng.sample(words.STARTS, 5) if narrow else words.STARTS
        self.digits = rng.sample(range(10), 4) if narrow else list(range(10))
        self.letter = "E" if kept else rng.choice("ABCDEFGHKLMNPRST")
        self.part_letter = "K" if kept else rng.choice("ABCDEFGHKLMNPRST")

    def name(self, kind: str) -> str:
        ends = _ENDS[kind]
        while True:
            name = self.rng.choice(self.starts) + self.rng.choice(ends)
            if is_kept(name) == self.kept:
                return name

    def number(self, digits: int) -> str:
        while True:
            number = "".join(str(self.rng.choice(self.digits)) for _ in range(digits))
            if is_kept(number) == self.kept:
                return number

    def near(self, kind: str, name: str) -> str:
        """A thing's name that differs by one digit, or by the beginning or the end of a word."""
        ends = _ENDS.get(kind, [])
        while True:
            if kind in ("error", "part"):
                head, digits = name[: -len(_digits(name))], list(_digits(name))
                digits[self.rng.randrange(len(digits))] = str(self.rng.randrange(10))
                other = "".join(digits)
                whole = head + other
            else:
                start, end = _split(name.split()[-1], ends)
                # Beginnings are what is mixed up most: there are more of them.
                if self.rng.random() < 0.75:
                    start = self.rng.choice(words.STARTS)
                else:
                    end = self.rng.choice(ends)
                other = whole = start + end
                if kind == "person":
                    title = name.split()[0]
                    if self.rng.random() < 0.5:
                        title = self.rng.choice(words.TITLES)
                    whole = f"{title} {other}"
            if is_kept(other) == self.kept and whole != name:
                return whole

    def thing_name(self, kind: str) -> str:
        if kind == "error":
            return self.letter + self.number(3)
        if kind == "part":
            return f"{self.part_letter}-{self.number(4)}"
        if kind == "person":
            return f"{self.rng.choice(words.TITLES)} {self.name('person')}"
        return self.name("town")

    def value(self, relation: str) -> str:
        pick = self.rng.choice
        side_and_component = f"{pick(words.SIDES)} {pick(words.COMPONENTS)}"
        if relation == "cause":
            return f"a {pick(words.CONDITIONS)} {side_and_component}"
        if relation == "remedy":
            return f"{pick(words.VERBS)} the {side_and_component}"
        if relation == "place":
            return f"{pick(words.PLACES)} the {side_and_component}"
        if relation == "life":
            return f"{self.rng.randrange(20, 1000) * 10} hours"
        if relation in ("charter", "death"):
            return str(self.rng.randrange(1000, 1900))
        if relation == "work":
            return f"the {pick(words.BUILDING_KINDS)} {pick(words.BUILDINGS)}"
        kind = {"founder": "person", "birth": "town", "maker": "firm"}.get(relation, relation)
        return self.thing_name(kind) if kind in ("person", "town", "part") else self.name(kind)


def make_world(
    rng: random.Random, kind: str, counts: dict[str, int], kept: bool, *, close: bool = False
) -> World:
    """A world with `counts` things of each kind, all with different names.

    With `close`, most names differ by little from another name of the world.
    """
    namer = Namer(rng, kept, narrow=not kept and rng.random() < 0.5)
    name = namer.name("machine" if kind == "manual" else "country")
    if kind == "manual":
        name += " " + rng.choice(words.MACHINES)
    things, seen = [], set()
    for thing_kind in KINDS[kind]:
        while sum(thing.kind == thing_kind for thing in things) < counts[thing_kind]:
            like = [thing.name for thing in things if thing.kind == thing_kind] if close else []
            if like and rng.random() < 0.7:
                thing_name = namer.near(thing_kind, rng.choice(like))
            else:
                thing_name = namer.thing_name(thing_kind)
            if thing_name.split()[-1] in seen:
                continue
            seen.add(thing_name.split()[-1])
            facts = {relation: namer.value(relation) for relation in words.RELATIONS[thing_kind]}
            things.append(Thing(thing_kind, thing_name, facts))
    return World(kind, name, things)


def plain_sentences(
    rng: random.Random, kind: str, count: int, *, in_order: bool = False
) -> list[str]:
    """Sentences without a fact, each of another pattern; in the order of the list if wanted."""
    patterns = words.PLAIN[kind]
    chosen = rng.sample(range(len(patterns)), count)
    sentences = []
    for pattern in (patterns[number] for number in (sorted(chosen) if in_order else chosen)):
        sentences.append(pattern.format(**{n: rng.choice(p) for n, p in words.POOLS.items()}))
    return sentences


def fill_in(pattern: str, world: World, thing: Thing) -> str:
    """A pattern with its names in it."""
    return pattern.format(s=thing.name, m=world.name)


def make_page(rng: random.Random, world: World, thing: Thing) -> Page:
    """A document about a thing, in patterns of documents."""
    sentences, patterns = [], {}
    for relation, value in thing.facts.items():
        patterns[relation] = rng.choice(words.RELATIONS[thing.kind][relation][0])
        sentences.append(f"{fill_in(patterns[relation], world, thing)} {value}.")
    sentences += plain_sentences(rng, world.kind, rng.randint(1, 3))
    rng.shuffle(sentences)
    opening = fill_in(rng.choice(words.OPENINGS[thing.kind]), world, thing)
    return Page(thing, " ".join([opening, *sentences]), patterns)


def plain_paragraphs(rng: random.Random, kind: str, count: int) -> list[str]:
    """Paragraphs of ordinary sentences.

    They come in the order of their patterns. In any order, a model this small does not learn that
    a paragraph says nothing twice, and repeats itself.
    """
    return [
        " ".join(plain_sentences(rng, kind, rng.randint(3, 7), in_order=True)) for _ in range(count)
    ]


def other_pages(seed: int, count: int) -> list[str]:
    """Pages of worlds that neither the training text nor the corpora know."""
    rng = random.Random(seed)
    pages: list[str] = []
    while len(pages) < count:
        for kind, (first, second) in KINDS.items():
            world = make_world(rng, kind, {first: 2, second: 2}, kept=False)
            pages += [make_page(rng, world, thing).text for thing in world.things]
    return pages[:count]


def make_corpus(kind: str, seed: int = 2024) -> tuple[World, list[Page]]:
    """The demo's own world of a kind and its pages."""
    rng = random.Random(f"{kind} {seed}")
    world = make_world(rng, kind, DOCUMENTS, kept=True)
    return world, [make_page(rng, world, thing) for thing in world.things]


def corpus_rows(kind: str) -> Iterator[dict[str, str]]:
    """A corpus as rows of its JSON lines."""
    world, pages = make_corpus(kind)
    titles = {"error": "Error {}", "part": "Part {}", "town": "{}", "person": "{}"}
    for number, page in enumerate(pages):
        title = f"{titles[page.thing.kind].format(page.thing.name)} ({world.name})"
        yield {"id": f"{kind}-{number:03}", "title": title, "text": page.text}


def make_questions(kind: str, seed: int = 7) -> list[dict[str, str]]:
    """The questions of a corpus, each in its document's words and in others."""
    rng = random.Random(f"{kind} {seed}")
    world, pages = make_corpus(kind)
    facts = [(n, relation) for n, page in enumerate(pages) for relation in page.thing.facts]
    rows = []
    for place, (number, relation) in enumerate(rng.sample(facts, QUESTIONS)):
        page = pages[number]
        other = rng.choice(words.RELATIONS[page.thing.kind][relation][1])
        rows.append(
            {
                "half": "tuning" if place < QUESTIONS // 2 else "final",
                "document": f"{kind}-{number:03}",
                "relation": relation,
                "seen": fill_in(page.patterns[relation], world, page.thing),
                "new": fill_in(other, world, page.thing),
                "strange": fill_in(words.STRANGE[relation], world, page.thing),
                "answer": page.thing.facts[relation],
            }
        )
    return rows


def to_lines(rows: list[dict[str, str]]) -> str:
    """Rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    (HERE / "questions").mkdir(exist_ok=True)
    for kind in KINDS:
        (HERE / f"{kind}.jsonl").write_text(to_lines(list(corpus_rows(kind))), encoding="utf-8")
        questions = HERE / "questions" / f"{kind}.jsonl"
        questions.write_text(to_lines(make_questions(kind)), encoding="utf-8")


if __name__ == "__main__":
    main()
