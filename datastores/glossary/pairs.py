"""Writes the glossary's sentences: pairs to remember, and other sentences to ask about.

    python datastores/glossary/pairs.py

Every term is invented, so no model has seen it: half are words of no language, half are compounds
of common words whose translation could not be guessed.
"""

import json
import random
from pathlib import Path

HERE = Path(__file__).parent
SEED = 7
SENTENCES_A_TERM = 12

# English, German, gender.
TERMS = [
    ("flurbit", "Gronkel", "m"),
    ("zelvane", "Tramsel", "f"),
    ("brindock", "Wolpert", "m"),
    ("quorn lamp", "Sudelicht", "n"),
    ("morvil", "Kestrade", "f"),
    ("tandrel", "Pfoschen", "n"),
    ("ospery", "Ludrine", "f"),
    ("grelb", "Schmarn", "m"),
    ("vintock", "Harbinse", "f"),
    ("drossal", "Kumpfer", "m"),
    ("pellawick", "Zwendel", "n"),
    ("jorrick", "Mastune", "f"),
    ("snarvel", "Trockin", "m"),
    ("ubbin", "Feldrose", "f"),
    ("crandle", "Birsing", "m"),
    ("welpine", "Oststock", "m"),
    ("thrabble", "Nodelung", "f"),
    ("kivvet", "Strampf", "n"),
    ("gomery", "Tischel", "n"),
    ("luntern", "Abrasse", "f"),
    ("mabrick", "Ziegelin", "m"),
    ("perrowan", "Kolbine", "f"),
    ("slaith", "Wiefer", "m"),
    ("tornby", "Druckel", "n"),
    ("wind cradle", "Brisenstuhl", "m"),
    ("snow gate", "Flockenpforte", "f"),
    ("hand bridge", "Greifsteg", "m"),
    ("cloud table", "Nebelplatte", "f"),
    ("street anchor", "Gassenhaken", "m"),
    ("night basket", "Mondkorb", "m"),
    ("water ladder", "Flutleiter", "f"),
    ("ball oven", "Kugelherd", "m"),
    ("grass clock", "Halmuhr", "f"),
    ("stone shirt", "Felsrock", "m"),
    ("bird wheel", "Flügelrad", "n"),
    ("paper boot", "Blattschuh", "m"),
    ("sand mirror", "Dünenglas", "n"),
    ("fire rope", "Glutband", "n"),
    ("tree drum", "Stammtrommel", "f"),
    ("ice hammer", "Frostschlegel", "m"),
    ("milk wagon", "Rahmkarren", "m"),
    ("bread tent", "Laibzelt", "n"),
    ("star bucket", "Funkeleimer", "m"),
    ("rain chair", "Tropfensitz", "m"),
    ("wood trumpet", "Holzhorn", "n"),
    ("river coat", "Stromkittel", "m"),
    ("moon shovel", "Silberspaten", "m"),
    ("garden sail", "Beetsegel", "n"),
]

# To remember.
FRAMES = [
    ("A man is holding a {term}.", "Ein Mann hält {accusative}."),
    ("A woman is looking at a {term}.", "Eine Frau betrachtet {accusative}."),
    ("Two children are playing with a {term}.", "Zwei Kinder spielen mit {dative}."),
    ("A boy is standing next to a {term}.", "Ein Junge steht neben {dative}."),
    ("A {term} is lying on the street.", "{nominative} liegt auf der Straße."),
    ("A worker repairs a {term}.", "Ein Arbeiter repariert {accusative}."),
    ("An old man sells a {term}.", "Ein alter Mann verkauft {accusative}."),
    ("A girl sits in front of a {term}.", "Ein Mädchen sitzt vor {dative}."),
    ("A group of people is standing around a {term}.", "Eine Gruppe steht um {accusative} herum."),
    ("A {term} is standing in the water.", "{nominative} steht im Wasser."),
    (
        "A woman in a blue shirt buys a {term}.",
        "Eine Frau in einem blauen Hemd kauft {accusative}.",
    ),
    ("Two men are working on a {term}.", "Zwei Männer arbeiten an {dative}."),
]

# To tune on, and to ask about in the end: none of these is remembered.
TUNING = [
    ("A young man carries a {term}.", "Ein junger Mann trägt {accusative}."),
    ("A dog is running towards a {term}.", "Ein Hund läuft auf {accusative} zu."),
    ("Two boys are jumping over a {term}.", "Zwei Jungen springen über {accusative}."),
    (
        "The man in the white hat is cleaning a {term}.",
        "Der Mann mit dem weißen Hut putzt {accusative}.",
    ),
]
QUESTIONS = [
    ("Three women are sitting behind a {term}.", "Drei Frauen sitzen hinter {dative}."),
    (
        "A little girl in a red dress paints a {term}.",
        "Ein kleines Mädchen in einem roten Kleid malt {accusative}.",
    ),
    ("A cyclist is riding past a {term}.", "Ein Radfahrer fährt an {dative} vorbei."),
    (
        "Four people in yellow jackets are taking pictures of a {term}.",
        "Vier Personen in gelben Jacken fotografieren {accusative}.",
    ),
]

ARTICLES = {
    "nominative": {"m": "Ein", "f": "Eine", "n": "Ein"},
    "accusative": {"m": "einen", "f": "eine", "n": "ein"},
    "dative": {"m": "einem", "f": "einer", "n": "einem"},
}


def pair(frame, term):
    """A source and its target."""
    english, german, gender = term
    nouns = {case: f"{articles[gender]} {german}" for case, articles in ARTICLES.items()}
    return frame[0].format(term=english), frame[1].format(**nouns)


def remembered():
    """Rows of the corpus: each term in several of the frames."""
    chance = random.Random(SEED)
    rows = []
    for term in TERMS:
        for frame in chance.sample(FRAMES, SENTENCES_A_TERM):
            source, target = pair(frame, term)
            rows.append({"source": source, "target": target, "title": f"{term[0]} = {term[1]}"})
    chance.shuffle(rows)
    return [{"id": f"glossary-{number:03d}", **row} for number, row in enumerate(rows)]


def asked(frames):
    """Rows to ask about, with the term that the translation has to hold."""
    rows = []
    for term in TERMS:
        for frame in frames:
            source, target = pair(frame, term)
            rows.append({"source": source, "target": target, "term": term[1]})
    return rows


def write(path, rows):
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(HERE / "pairs.jsonl", remembered())
    write(HERE / "tuning.jsonl", asked(TUNING))
    write(HERE / "questions.jsonl", asked(QUESTIONS))
