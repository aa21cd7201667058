"""The words that the demo's texts are made of: pieces of names, values, and sentence patterns.

In a pattern, `{s}` is what the sentence is about and `{m}` the machine or the country. The value
follows, then a full stop. Each relation has two lists: patterns of documents, and patterns that
only questions use. Training text has both, for things that the demo's corpora do not know.
"""


def _words(text: str) -> list[str]:
    return text.split()


STARTS = _words(
    "Bal Ber Bor Bran Cal Car Cor Dal Dar Del Dor Dun El Er Fal Far Fen Gal Gar Gor Gral Hal Har "
    "Hel Hol Jor Kal Kel Ken Kor Kra Lan Lor Lun Mal Mar Mel Mor Nar Nel Nor Ol Or Os Pal Per Pol "
    "Qua Ral Ren Rod Ros Sal Sel Ser Sol Tal Tar Tel Tor Ul Um Val Var Vel Vin Vol Wal Wen Wil "
    "Yar Yel Zan Zel Zor Thal Thor Bel Bri Cre"
)
TOWN_ENDS = _words(
    "burg bridge brook combe cliff dale den field ford gate grove ham haven heath hill holt hurst "
    "keep land leigh mere minster moor mouth port ridge stead stone stow thorpe ton vale wall "
    "well wick wold wood worth"
)
PERSON_ENDS = _words(
    "a ac an and ard as bert da dan dia dric dwin en era eth fred gar gund ia ic il in ina is ita "
    "la lan lin lis ma mund na nia ric rin ta tha us vin wen win"
)
RIVER_ENDS = _words("ach ane ava ebbe elle ess ina isse ola onne osa rick und une usk yne")
FIRM_ENDS = _words("co dyne fab gear lux mak matic met pack tec tron werk")
MACHINES = _words("press loom lathe mill dryer kiln sorter binder pump crane oven cutter")
TITLES = _words("King Queen Duke Duchess Abbot Captain Count Lady Prince Bishop")

CONDITIONS = _words(
    "bent blocked broken burnt cold corroded cracked damp dirty dry frozen jammed leaking loose "
    "misplaced noisy overheated rusty scratched slipping stuck swollen torn worn"
)
SIDES = _words("front rear left right upper lower inner outer main spare")
COMPONENTS = _words(
    "axle bearing bellows belt blade bracket brake brush cable chain clamp clutch coil cover drum "
    "fan filter flap fuse gasket gear guide hinge hose lever magnet motor nozzle piston pulley "
    "ratchet relay roller rotor seal sensor shaft spindle spring switch tank tray valve wheel"
)
VERBS = _words(
    "adjust bend clean cool drain dry fasten file fit grease heat level lift loosen oil polish "
    "push reset rinse shorten straighten test tighten turn"
)
PLACES = _words("above behind below beneath beside between under inside near opposite")
BUILDING_KINDS = _words(
    "broad covered crooked deep double golden great green grey high iron long narrow new old "
    "painted quiet red round royal salt small square stone sunken tall timber white wide winding"
)
BUILDINGS = _words(
    "abbey aqueduct arsenal bakery barn bath belfry bridge canal castle causeway chapel dam "
    "fountain garden granary hall harbour hospital library lighthouse market mint monastery "
    "orchard palace quay road school stable theatre tunnel wharf"
)

# relation: (patterns of documents, patterns of questions)
ERROR = {
    "cause": (
        (
            "Error code {s} means",
            "Code {s} stands for",
            "When the display shows {s}, the cause is",
            "The control unit reports {s} after it finds",
            "On the {m}, {s} points to",
        ),
        (
            "Question: What lies behind {s}? Answer:",
            "If the machine stops with {s}, suspect",
            "The fault that raises {s} is called",
            "An operator who meets {s} is looking at",
        ),
    ),
    "remedy": (
        (
            "To clear {s},",
            "The remedy for {s} is to",
            "After {s}, switch the power off and",
            "The mechanic answers {s} in one way:",
            "Before the {m} runs again after {s},",
        ),
        (
            "Question: How is {s} cured? Answer:",
            "Whoever wants to be rid of {s} should",
            "What helps against {s} is this:",
            "The manual's advice on {s} reads:",
        ),
    ),
    "part": (
        (
            "The spare part for {s} is",
            "For {s}, order part",
            "Error {s} calls for part number",
            "Repairs after {s} use part",
        ),
        (
            "Question: Which item must be bought for {s}? Answer:",
            "The store room hands out against {s} number",
            "A machine down with {s} needs a new",
        ),
    ),
}
PART = {
    "place": (
        (
            "Part {s} is mounted",
            "On the {m}, part {s} sits",
            "You will find part {s}",
            "The drawing shows part {s}",
        ),
        (
            "Question: Where does {s} belong? Answer:",
            "Someone searching for {s} should look",
            "The right position of {s} is",
        ),
    ),
    "life": (
        (
            "Part {s} is replaced after",
            "The service life of part {s} is",
            "Change part {s} every",
            "Part {s} is good for",
        ),
        (
            "Question: How long does {s} last? Answer:",
            "Expect {s} to hold out for",
            "It is usual to renew {s} within",
        ),
    ),
    "maker": (
        (
            "Part {s} is made by",
            "The maker of part {s} is",
            "Part {s} comes from the works of",
            "The label on part {s} names",
        ),
        (
            "Question: Who supplies {s}? Answer:",
            "Reorder {s} directly with",
            "The firm that delivers {s} is",
        ),
    ),
}
TOWN = {
    "founder": (
        (
            "{s} was founded by",
            "The founder of {s} was",
            "The first houses of {s} were raised by",
            "In {m} it is said that {s} was settled by",
        ),
        (
            "Question: Who began the town of {s}? Answer:",
            "{s} owes its existence to",
            "The statue in {s} shows its first lord,",
        ),
    ),
    "charter": (
        (
            "{s} received its charter in the year",
            "The charter of {s} dates from",
            "The market rights of {s} were granted in",
            "The kings of {m} made {s} a free town in",
        ),
        (
            "Question: When did {s} gain its freedom? Answer:",
            "{s} counts itself a city since",
            "The seal of {s} bears the date",
        ),
    ),
    "river": (
        (
            "{s} lies on the river",
            "Through {s} flows the",
            "The mills of {s} stand on the",
            "The old bridge of {s} crosses the",
        ),
        (
            "Question: What water runs past {s}? Answer: the",
            "Boats reach {s} along the",
            "Anglers from {s} fish in the",
        ),
    ),
}
PERSON = {
    "birth": (
        (
            "{s} was born in",
            "The home of {s} was",
            "{s} came from the town of",
            "As a child {s} lived in",
        ),
        (
            "Question: Where did {s} first see the light? Answer:",
            "The cradle of {s} stood in",
            "The parents of {s} kept a house in",
        ),
    ),
    "death": (
        (
            "{s} died in the year",
            "The life of {s} ended in",
            "{s} was buried in",
            "The people of {m} mourned {s} in",
        ),
        (
            "Question: When did {s} pass away? Answer:",
            "The tombstone of {s} gives the date",
            "Bells tolled for the dead {s} in",
        ),
    ),
    "work": (
        (
            "{s} built",
            "The great work of {s} was",
            "{s} is remembered for",
            "With the taxes of {m}, {s} paid for",
        ),
        (
            "Question: What did {s} leave behind? Answer:",
            "Travellers thank {s} for",
            "The masons worked ten years for {s} on",
        ),
    ),
}
RELATIONS = {"error": ERROR, "part": PART, "town": TOWN, "person": PERSON}

OPENINGS = {
    "error": (
        "This page of the {m} manual is about {s}.",
        "Service note for the {m}: {s}.",
        "The {m} can stop with {s}.",
        "Faults of the {m}, entry {s}.",
    ),
    "part": (
        "Parts list of the {m}: {s}.",
        "This page of the {m} manual is about part {s}.",
        "The {m} holds one part {s}.",
    ),
    "town": (
        "Among the towns of {m} is {s}.",
        "The chronicle of {m} speaks of {s}.",
        "{s} is a town in {m}.",
    ),
    "person": (
        "The chronicle of {m} speaks of {s}.",
        "Few names in {m} are as well known as {s}.",
        "This chapter of the chronicle of {m} is about {s}.",
    ),
}

# Wordings that stand neither in the corpora nor in the training text, one for each relation.
STRANGE = {
    "cause": "Tell me what is wrong when I read {s} there:",
    "remedy": "My screen says {s}, so my next job is to",
    "part": "What do I have to get at the shop because of {s}?",
    "place": "I hold {s} in my hand and want to put it",
    "life": "We threw {s} out once it had run for",
    "maker": "Send the bill for {s} back to",
    "founder": "Long ago the land where {s} stands belonged to",
    "charter": "Every child in {s} learns one date by heart,",
    "river": "In {s} you can hear the sound of the",
    "birth": "Today a small plate marks the house of {s} in",
    "death": "There was no more news of {s} after",
    "work": "Nobody would have drawn the plans without {s} for",
}

# Ordinary sentences, with no fact in them.
PLAIN = {
    "manual": (
        "Switch the machine off before you open the {o}.",
        "Keep the {o} dry and clean.",
        "A {j} {o} is a danger to the {p}.",
        "Write the repair into the {b} {w}.",
        "Wear gloves when the {o} is hot.",
        "Ask the {p} before you start the machine again.",
        "Check the oil {w}.",
        "Do not touch the {o} while the machine is running.",
        "The {p} keeps the {b} near the door.",
        "Wait until the {o} has stopped.",
        "Never leave a {o} on the floor.",
        "The {p} must read this page first.",
        "If the {o} makes a noise, call the {p}.",
        "Clean the {o} with a soft cloth {w}.",
        "Two people are needed to lift the {o}.",
        "Only the {p} may open the {o}.",
    ),
    "chronicle": (
        "The winter was {j}, and the {p} stayed at home.",
        "The {p} sold bread and salt in the {l}.",
        "In spring the {p} walked to the {l}.",
        "A {j} wind came from the {l} {w}.",
        "The {p} wrote all of it into the {b}.",
        "Nobody in the {l} knew what the {p} had seen.",
        "It rained for days, and the {l} stood under water.",
        "The {p} told the story {w}.",
        "The harvest was good, and the {p} was glad.",
        "Children played in the {l} {w}.",
        "The {p} lost a {b} in the {l}.",
        "There was music in the {l} {w}.",
        "A {j} fire burnt in the house of the {p}.",
        "The road to the {l} was {j}.",
        "The {p} asked for help, and help came.",
        "In summer the {l} was full of people.",
    ),
}
POOLS = {
    "o": _words("cover door handle lamp lid panel table tool"),
    "p": _words("baker carpenter clerk farmer fisherman foreman guard keeper miller sailor"),
    "b": _words("book letter list log notebook register"),
    "l": _words("field forest garden harbour market street valley village"),
    "j": _words("cold dark hard heavy long new small strong"),
    "w": ("at night", "each evening", "each morning", "every week", "in the morning", "on Sunday"),
}
