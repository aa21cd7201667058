"""Notes about anything: plain sentences with a fact, and other ways to begin or to ask for them.

They teach the model to find the end of a sentence that a visitor brings along. A note's fact is
either an attribute ("The price of the blue lamp is 45 euros.") or an event ("The choir rehearses
in the town hall on Monday at seven."), whose place or time is asked for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


ADJECTIVES = words_of("""big small new old blue red green white black yellow good bad young long
    short wide narrow cheap quiet loud busy empty full early late local public private main
    second third first last northern southern central famous friendly strange simple modern
    ancient wooden golden silver broken clean heavy light warm cold dark bright junior
    senior open closed free royal brown grey pink spare little tiny huge happy sad tired""")
THINGS = words_of("""lamp table chair car bicycle boat train bus ticket book letter key phone
    computer printer camera radio clock watch ring coat shoe hat bag box bottle cup plate
    knife spoon bread cake cheese soup coffee tea beer wine milk garden tree flower house
    roof wall window door room kitchen office shop store bank hotel school library museum
    theatre cinema station airport harbour bridge road street park square market church
    tower hall club team choir band orchestra class course lesson meeting concert play film
    game match race exhibition party wedding festival project report contract invoice
    account password budget server network website program file folder database machine
    engine tool battery cable switch sensor filter pump ladder paint brush hammer nail screw
    wood paper map song poem story recipe medicine tablet bed sofa mirror carpet curtain
    oven fridge sink shower towel horse dog cat cow sheep goat hen duck bee fish bird rabbit
    farm field forest lake river island mountain valley village city country region company
    factory workshop laboratory hospital clinic university department committee council
    court police army union newspaper magazine channel studio gallery pool gym stadium camp
    hut cabin castle statue fountain vase painting picture photo album drawing sign label
    parcel stamp postcard envelope notebook pen""")
PEOPLE = words_of("""teacher doctor nurse baker butcher farmer driver pilot captain sailor soldier
    lawyer judge engineer manager director president secretary student pupil singer dancer
    actor writer painter poet musician conductor trainer player runner swimmer cook waiter
    gardener cleaner plumber carpenter tailor barber guard guide librarian editor reporter
    scientist professor neighbour friend brother sister mother father uncle aunt cousin
    grandmother boss colleague owner guest visitor customer child boy girl woman man team
    choir band club committee council class orchestra group family staff crew""")
ATTRIBUTES = words_of("""price colour weight height width length size age name owner address number
    code password size depth speed temperature capacity voltage power material title author
    editor director leader chairman keeper language currency capital mayor population area
    budget cost fee rent salary deadline date opening closing start end duration distance
    direction rule reason purpose goal plan result score winner loser prize record rank
    grade level version format type model brand sort kind class colour-code taste smell
    sound shape pattern theme topic subject motto slogan nickname birthday anniversary
    phone-number room entrance exit floor key pin limit minimum maximum average quantity
    contents ingredient dose effect danger warning cause cure remedy part maker place
    founder river birthplace work""")
COLOURS = words_of(
    "blue red green white black yellow brown grey pink orange purple silver golden violet"
)
MATERIALS = words_of(
    "wood steel glass paper copper stone leather cotton silk wool plastic rubber brass "
    "clay iron concrete"
)
UNITS = words_of(
    "euros dollars pounds metres centimetres kilos grams litres minutes days weeks months "
    "years degrees volts pages pieces"
)
DAYS = words_of("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words_of(
    """January February March April May June July August September October November December"""
)
HOURS = words_of("one two three four five six seven eight nine ten eleven twelve noon midnight")
PARTS_OF_DAY = words_of("morning afternoon evening night")
# base form, third person, gerund
VERBS = [
    tuple(one.split("/"))
    for one in words_of("""rehearse/rehearses meet/meets open/opens close/closes work/works
    sing/sings play/plays train/trains eat/eats sleep/sleeps arrive/arrives leave/leaves
    start/starts end/ends wait/waits study/studies read/reads write/writes
    practise/practises perform/performs swim/swims run/runs dance/dances cook/cooks
    rest/rests travel/travels talk/talks teach/teaches learn/learns shop/shops walk/walks
    gather/gathers live/lives stay/stays stop/stops return/returns speak/speaks paint/paints
    fish/fishes pray/prays celebrate/celebrates park/parks land/lands appear/appears""")
]
DOES = [
    tuple(one.split("/"))
    for one in words_of("""sell/sells buy/buys make/makes repair/repairs collect/collects
    build/builds clean/cleans carry/carries grow/grows bring/brings keep/keeps use/uses
    need/needs like/likes want/wants show/shows find/finds paint/paints wash/washes
    read/reads write/writes send/sends check/checks draw/draws produce/produces feed/feeds
    watch/watches own/owns""")
]
WHERE = words_of("in at near behind beside under above opposite outside inside")
DETERMINERS = words_of("the the the our a this my their your")
# Two of them carry spaces of the page that they were written on; training had them so.
LEADS = (
    "please note that",
    "remember:",
    "as you know,",
    "it is said that",
    "we know that",
    "note:",
    "of course",
    "I think",
    "in fact,",
    "this year\n    ",
    "usually",
    "as always,",
    "people say that",
    "as a rule",
    "normally",
    "attention:",
    "by the way,",
    "it is true that",
    "they say",
)
SYLLABLES = words_of(
    "Ka Mi Lo Ta Re Si No Pa Ju Ben Tom Ann Eri Oli Lu Mar Fin Wil Han Jo So Em Da"
)
ENDS = words_of("na ra ta lia ry son sen man ler ka el er is o a i us ton")


@dataclass(frozen=True)
class Note:
    """A sentence up to its fact, the fact, and other beginnings and questions for it."""

    subject: str
    begin: str
    value: str
    rest: str
    others: tuple[str, ...]


def person_name(rng: random.Random) -> str:
    return " ".join(rng.choice(SYLLABLES) + rng.choice(ENDS) for _ in range(rng.choice([1, 2])))


def thing(rng: random.Random) -> str:
    noun = rng.choice(THINGS)
    return f"{rng.choice(ADJECTIVES)} {noun}" if rng.random() < 0.5 else noun


def amount(rng: random.Random) -> str:
    return f"{rng.choice([rng.randrange(2, 30), rng.randrange(30, 3000)])} {rng.choice(UNITS)}"


def when(rng: random.Random) -> str:
    """A time, as it stands in a sentence."""
    return rng.choice(
        [
            f"on {rng.choice(DAYS)}",
            f"on {rng.choice(DAYS)} {rng.choice(PARTS_OF_DAY)}s",
            f"at {rng.choice(HOURS)}",
            f"every {rng.choice([*DAYS, *PARTS_OF_DAY])}",
            f"in {rng.choice(MONTHS)}",
            f"on {rng.choice(DAYS)} at {rng.choice(HOURS)}",
            f"on {rng.randrange(1, 29)} {rng.choice(MONTHS)}",
            f"in {rng.randrange(1900, 2030)}",
        ]
    )


def where(rng: random.Random) -> str:
    return f"{rng.choice(WHERE)} the {thing(rng)}"


def attribute_note(rng: random.Random, subject: str, attribute: str) -> Note:
    """The attribute of a thing."""
    value = rng.choice(
        [
            amount,
            amount,
            person_name,
            lambda r: r.choice(COLOURS),
            lambda r: r.choice(MATERIALS),
            lambda r: str(r.randrange(100, 9999)),
            thing,
            lambda r: f"{r.choice(ADJECTIVES)} {r.choice(THINGS)}",
        ]
    )(rng)
    a, s = attribute.replace("-", " "), subject
    tells = [
        f"The {a} of the {s} is",
        f"The {s} has the {a}",
        f"The {s}'s {a} is",
        f"The {a} for the {s} is",
    ]
    rng.shuffle(tells)
    asks = [
        f"what is the {a} of the {s}?",
        f"the {s} {a}?",
        f"{a} of the {s}",
        f"{s} {a}",
        f"tell me the {a} of the {s}",
        f"which {a} does the {s} have?",
        f"what {a} has our {s}?",
        f"the {a} of our {s} is",
        f"the {a} for the {s}:",
        f"and the {a} of the {s} was",
        f"do you know the {a} of the {s}?",
    ]
    return Note(s, tells[0], value, "", (*tells[1:], *rng.sample(asks, 4)))


def event_note(rng: random.Random, subject: str) -> Note:
    """What somebody does, where and when; one of the three is the fact."""
    det = rng.choice(DETERMINERS)
    doer = f"{det} {subject}"
    doers = [f"{one} {subject}" for one in rng.sample(["the", "our", "my", "this", "a", "your"], 3)]
    doers.append(subject.split()[-1])
    time, place = when(rng), where(rng)
    wanted = rng.choice(["time", "place", "object"])
    if wanted == "object":
        base, does = rng.choice(DOES)
        value = rng.choice(["", "the ", "a ", "old ", "new "])
        value += f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}"
        tail = rng.choice(["", f" {time}", f" {place}"])
        begin = f"{doer} {does}"
        others = [f"{one} {does}" for one in doers] + [
            f"what does the {subject} {base}?",
            f"what does the {subject} {base}",
            f"what is it that the {subject} {does}?",
            f"{tail.strip()} {doer} {does}".strip(),
            f"{rng.choice(LEADS)} {doer} {does}",
        ]
        return Note(subject, begin, value, tail, tuple(others))
    base, does = rng.choice(VERBS)
    value, other = (time, place) if wanted == "time" else (place, time)
    both = rng.random() < 0.5
    middle = f" {other}" if both else ""
    tail = f" {other}" if not both and rng.random() < 0.3 else ""
    word = "when" if wanted == "time" else "where"
    begin = f"{doer} {does}{middle}"
    others = [f"{one} {does}{middle}" for one in doers] + [
        f"{word} does the {subject} {base}?",
        f"{word} does the {subject} {base}{middle}?",
        f"{word} does {doer} {base}",
        f"tell me {word} the {subject} {does}",
        f"{rng.choice(LEADS)} {doer} {does}{middle}",
        f"{other} {doer} {does}",
        f"{doer} always {does}",
    ]
    # The first word of a time or a place is grammar; all of it is the fact.
    return Note(subject, begin, value, tail, tuple(others))


def make_notes(rng: random.Random, count: int) -> list[Note]:
    """Notes that are easily mixed up: few subjects, few attributes."""
    subjects = [thing(rng) for _ in range(max(2, count // 3))]
    people = [
        rng.choice(PEOPLE)
        if rng.random() < 0.6
        else f"{rng.choice(ADJECTIVES)} {rng.choice(PEOPLE)}"
        for _ in range(max(2, count // 2))
    ]
    attributes = rng.sample(ATTRIBUTES, max(2, count // 3))
    notes: dict[tuple[str, str], Note] = {}
    while len(notes) < count:
        if rng.random() < 0.5:
            key = (rng.choice(subjects), rng.choice(attributes))
            notes.setdefault(key, attribute_note(rng, *key))
        else:
            subject = rng.choice(people)
            note = event_note(rng, subject)
            notes.setdefault((subject, note.begin.split(" ", 1)[1][:12]), note)
    return list(notes.values())


def filler(rng: random.Random) -> str:
    """A sentence with nothing to find."""
    return rng.choice(
        [
            lambda r: f"{r.choice(['I', 'we', 'they', 'you'])} {r.choice(VERBS)[0]} {where(r)}.",
            lambda r: f"{r.choice(['I', 'we', 'they'])} {r.choice(DOES)[0]} a {thing(r)}.",
            lambda r: f"the {r.choice(PEOPLE)} {r.choice(VERBS)[1]} {when(r)}.",
            lambda r: f"my {r.choice(PEOPLE)} is {r.choice(ADJECTIVES)}.",
            lambda r: f"the {r.choice(THINGS)} is {r.choice(ADJECTIVES)}.",
            lambda r: f"there is a {thing(r)} {where(r)}.",
            lambda r: f"my {r.choice(PEOPLE)} asks:",
            lambda r: f"the {r.choice(PEOPLE)} wants to know:",
            lambda r: f"for my {r.choice(THINGS)}:",
        ]
    )(rng)


def idle_question(rng: random.Random, name: str) -> str:
    """A question whose answer no document has; `name` is something that documents know."""
    attribute = rng.choice(
        words_of("""price weight height population mayor wife husband age colour size area language
    religion temperature voltage length speed password phone number owner email king area
    code music animal favourite dish school teacher doctor eye colour warranty barcode
    serial number flag anthem dog horse son daughter brother sister mother opinion salary
    hobby weather climate food""")
    )
    return rng.choice(
        [
            f"what is the {attribute} of {name}?",
            f"{name} {attribute}",
            f"{name} {attribute}?",
            f"how much does {name} cost?",
            f"how many people live in {name}?",
            f"how heavy is {name}?",
            f"the {attribute} of {name} is",
            f"tell me the {attribute} of {name}",
            f"does {name} like the {rng.choice(THINGS)}?",
            f"who is the {rng.choice(PEOPLE)} of {name}?",
            f"what colour is {name}?",
            f"how far is it to {name}?",
            f"when does {name} {rng.choice(VERBS)[0]}?",
            f"how big is {name}",
            f"is {name} {rng.choice(ADJECTIVES)}?",
            f"who {rng.choice(DOES)[1]} the {rng.choice(THINGS)} of {name}?",
            f"where does the {rng.choice(PEOPLE)} {rng.choice(VERBS)[0]}?",
            f"what is the {rng.choice(ATTRIBUTES)} of the {thing(rng)}?",
            f"how do I {rng.choice(DOES)[0]} a {thing(rng)}?",
            f"{name} and the {thing(rng)}",
        ]
    )
