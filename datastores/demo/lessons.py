"""What one step of training sees: documents, questions about them, and questions nobody answers.

A batch has an invented machine, an invented country and a handful of notes. Documents are what a
datastore would hold. Questions are answered from the documents' states alone: a question's own
text never teaches the model a fact, and by itself the model is taught to say `SILENCE`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import asking
import notes
import text
import words
from grammar import Expander

SILENCE = " No document says that."
KINDS = ("manual", "chronicle", "notes")
ASIDES = ("in", "of", "on", "for", "from", "by", "behind", "near", "under", "inside", "at")
TRAINED = Expander(asking.GRAMMAR)
TRAINED_WIDE = Expander(asking.WIDE)


@dataclass
class Segment:
    """A text that sees only itself.

    Attributes:
        kind: Whose memory it belongs to, a place in `KINDS`.
        asked: A question, which no datastore holds.
        pieces: Text, and the fact it states: a number, or None.
        spoken: Whether the model learns to write it. What is only a key for memory is not.
    """

    kind: int
    asked: bool
    pieces: list[tuple[str, int | None]] = field(default_factory=list)
    spoken: bool = True


def page(
    rng: random.Random,
    world: text.World,
    thing: text.Thing,
    facts: dict[str, int],
    close: bool,
) -> list[tuple[str, int | None]]:
    """A document as `text.make_page` makes them, in pieces; `facts` numbers its facts.

    In a `close` lesson, some pages begin with an ordinary sentence in place of an opening.
    """
    sentences: list[list[tuple[str, int | None]]] = []
    for relation, value in thing.facts.items():
        documents, others = words.RELATIONS[thing.kind][relation]
        pattern = rng.choice(documents)
        roll = rng.random()
        if roll < 0.1:
            pattern = rng.choice(others)
        elif roll < 0.25:
            pattern = told(rng, relation, close)
        begin = text.fill_in(pattern.replace("{e}", "{s}"), world, thing)
        sentences.append([(begin, None), (f" {value}", facts[relation]), (".", None)])
    plain = text.plain_sentences(rng, world.kind, rng.randint(0, 3))
    sentences += [[(sentence, None)] for sentence in plain]
    rng.shuffle(sentences)
    if close and plain and rng.random() < 0.3:
        first = [(plain[0], None)]
        sentences.remove(first)
        return _in_a_row([first, *sentences])
    opening = text.fill_in(rng.choice(words.OPENINGS[thing.kind]), world, thing)
    return _in_a_row([[(opening, None)], *sentences])


def _in_a_row(sentences: list[list[tuple[str, int | None]]]) -> list[tuple[str, int | None]]:
    """The pieces of sentences that follow each other."""
    pieces: list[tuple[str, int | None]] = []
    for sentence in sentences:
        (first, fact), *rest = sentence
        space = " " if pieces else ""
        pieces += [(f"{space}{first[:1].upper()}{first[1:]}", fact), *rest]
    return pieces


def expander(close: bool) -> Expander:
    """The productions of the first course, or of the second."""
    return TRAINED_WIDE if close else TRAINED


def told(rng: random.Random, relation: str, close: bool) -> str:
    """A sentence to complete, from the grammar."""
    return expander(close).draw(rng, f"SAY_{relation.upper()}")


def prompt_for(
    rng: random.Random,
    world: text.World,
    thing: text.Thing,
    relation: str,
    close: bool,
    vague: bool,
) -> str:
    """How a fact is asked for: by the grammar, or as the fixed wordings do."""
    documents, others = words.RELATIONS[thing.kind][relation]
    roll = rng.random()
    if roll < 0.2:
        prompt = text.fill_in(rng.choice(documents if roll < 0.1 else others), world, thing)
        return asking.slips(rng, prompt, thing.name) if rng.random() < 0.3 else prompt
    prompt = asking.draw_prompt(rng, expander(close), relation, thing.name, world.name, vague=vague)
    return with_filler(rng, prompt)


def rough(rng: random.Random, prompt: str, name: str, world: str) -> str:
    """A prompt with more that comes between: words beside the point, capitals, a code in two."""
    digits = name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
    if digits.isdigit() and rng.random() < 0.06:
        for one in (name, name.lower()):
            between = rng.choice([" ", "-", ""])
            prompt = prompt.replace(one, f"{one[:1]}{between}{digits}")
    elif rng.random() < 0.15 and len(prompt) > len(name) + 12:
        prompt = with_aside(rng, prompt, world)
    elif rng.random() < 0.06:
        prompt = prompt.upper()
    return prompt


def with_aside(rng: random.Random, prompt: str, world: str) -> str:
    """Words that a question may have before it or at its end, and that ask for nothing."""
    thing = notes.thing(rng)
    place = f"{rng.choice(ASIDES)} the {thing}"
    aside = rng.choice(
        [thing, rng.choice(notes.LEADS), rng.choice(notes.PEOPLE), place, f"{place} of {world}"]
    )
    aside = " ".join(aside.split())
    if prompt.islower():
        aside = aside.lower()
    if rng.random() < 0.5 and prompt[-1] in "?!." and prompt[-2:-1].isalnum():
        return f"{prompt[:-1]} {aside}{prompt[-1]}"
    between = rng.choice([" ", ", ", ": "])
    return f"{aside}{between}{prompt}"


def with_filler(rng: random.Random, prompt: str) -> str:
    """Now and then something beside the point comes first."""
    if rng.random() < 0.07:
        before = notes.filler(rng)
        return f"{before[:1].upper()}{before[1:]} {prompt}"
    return prompt


def known_questions(
    rng: random.Random, things: int, kind: int, first: int, close: bool, vague: bool
) -> list[Segment]:
    """Pages of a world with questions about them, and about things that no page is about."""
    name = KINDS[kind]
    one, two = text.KINDS[name]
    count = rng.randint(things // 3, things - things // 3)
    world = text.make_world(rng, name, {one: count, two: things - count}, kept=False, close=close)
    absent = set(rng.sample(range(things), things // (4 if close else 5)))

    def ask(thing: text.Thing, relation: str) -> str:
        prompt = prompt_for(rng, world, thing, relation, close, vague)
        return rough(rng, prompt, thing.name, world.name) if close else prompt

    segments: list[Segment] = []
    documents: list[Segment] = []
    for place, thing in enumerate(world.things):
        if place in absent:
            for relation in thing.facts:
                segments.append(silent(kind, ask(thing, relation)))
            continue
        facts = {relation: first + place * 3 + n for n, relation in enumerate(thing.facts)}
        pieces = page(rng, world, thing, facts, close)
        if documents and rng.random() < 0.15:
            documents[-1].pieces += [("\n", None), *pieces]
        else:
            documents.append(Segment(kind, False, pieces))
        for relation, value in thing.facts.items():
            for _ in range(rng.randint(1, 2) if close else 2):
                prompt = ask(thing, relation)
                pieces = [(prompt, None), (f" {value}", facts[relation]), (".", None)]
                segments.append(Segment(kind, True, pieces))
            if rng.random() < 0.2:
                pattern = rng.choice(sum(words.RELATIONS[thing.kind][relation], ()))
                begin = text.fill_in(pattern, world, thing)
                pieces = [(begin, None), (f" {value}", facts[relation]), (".", None)]
                # A text that opens with a fact's beginning is a question to complete.
                segments.append(Segment(kind, False, pieces, spoken=not close))
        if rng.random() < 0.4:
            called = asking.call(rng, expander(close), thing.kind, thing.name)
            prompt = notes.idle_question(rng, called)
            segments.append(silent(kind, asking.slips(rng, prompt, thing.name)))
        if rng.random() < 0.15:
            # A question for what only things of another sort have.
            other = rng.choice([r for r in asking.RELATIONS if asking.KIND_OF[r] != thing.kind])
            prompt = asking.draw_prompt(rng, expander(close), other, thing.name, world.name)
            if not (other in asking.ALONE and len(prompt) < len(thing.name) + 3):
                segments.append(silent(kind, prompt))
    for paragraph in text.plain_paragraphs(rng, name, 2):
        segments.append(Segment(kind, False, [(paragraph, None)]))
    return segments + documents


def silent(kind: int, prompt: str) -> Segment:
    """A question that memory must leave alone."""
    return Segment(kind, True, [(prompt, None), (SILENCE, None)])


def note_questions(rng: random.Random, count: int, kind: int, first: int) -> list[Segment]:
    """Documents of a few notes each, other beginnings of their sentences, and questions."""
    segments: list[Segment] = []
    pieces: list[tuple[str, int | None]] = []
    left = 0
    for number, note in enumerate(notes.make_notes(rng, count)):
        if number % 6 == 5:
            for other in rng.sample(note.others, 2):
                segments.append(silent(kind, asking.slips(rng, other, note.subject)))
            continue
        fact = first + number
        if not left:
            # At least two documents: one is predicted from the others.
            pieces, left = [], rng.choice([1, 2, 3, 4, 12] if segments else [1, 2])
            segments.append(Segment(kind, False, pieces))
        left -= 1
        begin = f"{note.begin[:1].upper()}{note.begin[1:]}"
        # The first word of a place or a time may belong to the beginning that is asked.
        head, _, tail = note.value.partition(" ")
        value = [(f" {head}", fact), *([(f" {tail}", fact + 500)] if tail else [])]
        pieces += [(f" {begin}" if pieces else begin, None), *value, (f"{note.rest}.", None)]
        prompts = [
            begin,
            *(asking.slips(rng, one, note.subject) for one in rng.sample(note.others, 2)),
        ]
        for prompt in prompts:
            cut = 1 if tail and not prompt.endswith("?") and rng.random() < 0.35 else 0
            begun = with_filler(rng, prompt) + "".join(piece for piece, _ in value[:cut])
            answer = [(begun, None), *value[cut:], (f"{note.rest}.", None)]
            segments.append(Segment(kind, True, answer))
    return segments


def lesson(
    rng: random.Random,
    things: tuple[int, int],
    count: int,
    *,
    close: bool = False,
    vague: bool = False,
) -> list[Segment]:
    """All texts of one step; facts are numbered through.

    Args:
        rng: What everything follows from.
        things: Of a machine and of a country.
        count: Of notes.
        close: Whether names differ by little, and questions are put more roughly.
        vague: Whether many questions have only a name.
    """
    segments = []
    for kind in range(2):
        segments += known_questions(rng, things[kind], kind, kind * 1000, close, vague)
    segments += note_questions(rng, count, 2, 2000)
    rng.shuffle(segments)
    return segments
