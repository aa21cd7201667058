"""How a question is wrapped: greetings, politeness, endings, and how a thing is called.

`draw_prompt` makes a prompt as somebody would type it: a question, keywords, an order, or a
sentence to complete. Slips of case, punctuation and spelling are added at the end.

`GRAMMAR` has the productions of the first course of training. `WIDE` has those of
`productions.json` as well, which somebody wrote who had not seen the others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

from asking_chronicle import CHRONICLE
from asking_manual import MANUAL
from grammar import Expander, Grammar, alternatives

RELATIONS = alternatives(
    "cause | remedy | part | place | life | maker | founder | charter | river | "
    "birth | death | work"
)
FRAMES = {
    name: alternatives(text)
    for name, text in {
        "I": "I | we | you | one | people | they | a mechanic | someone | the operator",
        "ME": "me | us",
        "HELLO": """hi, | hello, | hey, | good morning, | dear all, | excuse me, | sorry, |
            hi there, | good day, | hello everyone, | please, | ok, | okay, | well, | so |
            and | now | then | but | also, | quick question: | question: | Q: | Question: |
            one question: | just a question: | I have a question: | short question: | hm, |
            urgent: | yes, | oh, | right,""",
        "ASK": """tell me | please tell me | can you tell me | could you tell me |
            do you know | I want to know | I need to know | I would like to know |
            I'd like to know | I wonder | does anyone know | any idea | please say | say |
            let me know | could you please tell me | can you say | I am asking |
            would you tell me | do you happen to know | tell us | I was asked | find out |
            please find out | can anyone tell me | I have forgotten | we need to know |
            explain | please explain | can you explain | it would help to know |
            I'd be glad to hear | who can tell me | remind me | can somebody say |
            I don't know | nobody here knows | may I ask | my question is |
            you surely know | look up | what I need is | I'm curious |
            I'm trying to find out | could you look up | teach me | let us hear |
            tell me quickly""",
        "GIVE": """give me | tell me | name | state | I need | show me | please give me |
            please name | what is | what's | find | look up | can you give me | I want |
            could you give me | do you know | I'm looking for | looking for | I would like |
            I'd like to know | please tell me | do you have | list | write down | provide |
            search for | I need to know | can you find | get me | what was | which is |
            what could be | quickly, | I want to know | could you name | please look up |
            what would be | remind me of | let me have | send me | I am interested in |
            who knows | help me find""",
        "BYE": """please | thanks | thank you | exactly | now | again | in short | for me |
            if you know | by the way | please help | then | today | actually | really |
            anyone | do you know | according to the document | in the end | normally |
            at all | in detail | many thanks | quickly | in one word | I forgot""",
        "ON": """according to the text | in the text | on the {m} | in {m} | for the {m} |
            of the {m} | in this document | in the records | according to the book |
            in our files | in the history of {m} | with the {m}""",
        "BE": "is | was | is: | =",
        "ALONE": """{e} | {e} | {e} | {e} | tell me about {e} | what about {e} | about {e} |
            info {e} | info on {e} | information about {e} | anything on {e} |
            anything about {e} | what do you know about {e} | do you know {e} |
            what can you tell me about {e} | tell me something about {e} |
            say something about {e} | what is there on {e} | what does it say about {e} |
            what do the files say about {e} | describe {e} | explain {e} | look up {e} |
            search {e} | search for {e} | find {e} | details of {e} | details on {e} |
            {e} details | {e} info | {e} please | {e}, please | show me {e} | it is about {e} |
            I have a question about {e} | I am looking for {e} | my question is about {e} |
            {e}, what is known | what is known of {e} | what is known about {e} |
            facts about {e} | everything about {e} | I want to know about {e} |
            can you tell me about {e} | please tell me about {e} | I saw {e} | I read of {e} |
            what is said of {e} | summary of {e} | {e}, anything | what of {e} | and {e} |
            notes on {e} | who knows {e} | who can tell me about {e} | help with {e} |
            I need something on {e} | the page on {e} | the entry for {e} | more on {e}""",
        "ABOUT_E": """about {e}: | {e}: | {e} - | {e}, | regarding {e}: | as for {e}, |
            concerning {e}, | for {e}: | on {e}: | it is about {e}. |
            I have a question about {e}. | I am reading about {e}. | there is {e}. |
            I have {e} here. | take {e}. | you know {e}. | we talked about {e}. |
            look at {e}. | {e}. | with regard to {e}: | speaking of {e}, |
            my question is about {e}: | I heard of {e}. | this is about {e}. |
            think of {e}. | in the case of {e}, | {e}? | now {e}: | next, {e}:""",
        "MARK": "? | ? | ? | ? | ? |  |  |  | . | . | ! | ?? | : | ... | ; |  ?",
        "THEN": """ |  |  |  |  |  |  |  | \\n | \\nAnswer: | \\nA: | - | Answer: | \\n\\n |
            => |  | Answer: | A:""",
    }.items()
}
ENTITY = {
    "error": """{s} | {s} | {s} | error {s} | error code {s} | code {s} | the error {s} |
            fault {s} | the code {s} | message {s} | the message {s} | an {s} |
            the {s} error | fault code {s} | alarm {s} | this {s} | error message {s} |
            the fault {s} | {s} error""",
    "part": """{s} | {s} | {s} | part {s} | the part {s} | component {s} | item {s} |
            part number {s} | the {s} | spare part {s} | a {s} | the component {s} |
            part no. {s} | our {s} | number {s} | piece {s} | my {s} | the spare part {s} |
            this {s}""",
    "town": """{s} | {s} | {s} | the town of {s} | the town {s} | the city of {s} |
            the place {s} | the city {s} | old {s} | {s} town | our town {s} |
            the settlement {s} | the city named {s} | {s} city | a town called {s} |
            the town named {s}""",
    "person": """{s} | {s} | {s} | {s} | {b} | {s} of {m} | the famous {s} | old {s} |
            that {s} | our {s} | one {s} | the late {s} | {b} | good {s}""",
}
KIND_OF = {
    **dict.fromkeys(("cause", "remedy", "part"), "error"),
    **dict.fromkeys(("place", "life", "maker"), "part"),
    **dict.fromkeys(("founder", "charter", "river"), "town"),
    **dict.fromkeys(("birth", "death", "work"), "person"),
}
# What a name alone asks for.
ALONE = ("cause", "place", "founder", "work")
ALONE_MARKS = ("?", "", ".", "??", "!")
# So many of the prompts for these are vague, in a lesson that has vague prompts.
VAGUE = 0.6


def whole_grammar(more: Mapping[str, list[str]]) -> Grammar:
    """All productions: those of the facts, the frames, and the frames of each relation.

    Args:
        more: Further alternatives of names that there are.
    """
    grammar: dict[str, tuple[str, ...]] = {**FRAMES, **MANUAL, **CHRONICLE}
    for name, options in more.items():
        known = grammar[name]
        grammar[name] = (*known, *(one for one in options if one not in known))
    for kind, text in ENTITY.items():
        grammar[f"E_{kind.upper()}"] = alternatives(text)
    for relation in RELATIONS:
        name = relation.upper()
        grammar[f"NP_{name}"] = alternatives(
            f"""the <NOUN_{name}> of {{e}} | {{e}} <NOUN_{name}> | {{e}}'s <NOUN_{name}> |
            <NOUN_{name}> of {{e}} | the <NOUN_{name}> for {{e}} | <NOUN_{name}> for {{e}} |
            <NOUN_{name}> {{e}} | the <NOUN_{name}>, {{e}} | {{e}}, <NOUN_{name}> |
            a <NOUN_{name}> for {{e}} | <NOUN_{name}> to {{e}} | any <NOUN_{name}> for {{e}}"""
        )
        grammar[f"CORE_{name}"] = alternatives(
            f"<WH_{name}> | <WH_{name}> | <WH_{name}> | <ASK> <IND_{name}> | "
            f"<NP_{name}> | <GIVE> <NP_{name}> | <CMD_{name}> | "
            f"<IND_{name}> | <NP_{name}> <BE> | "
            f"<ABOUT_E> <NOUN_{name}> | <ABOUT_E> what is the <NOUN_{name}>"
        )
        grammar[f"ASK_{name}"] = alternatives(
            f"<CORE_{name}><MARK> | <CORE_{name}><MARK> | "
            f"<CORE_{name}><MARK> | <CORE_{name}><MARK> | "
            f"<CORE_{name}><MARK> | <WH_{name}>? | <WH_{name}> | "
            f"<NP_{name}> | <NP_{name}>? | <HELLO> <CORE_{name}><MARK> | "
            f"<CORE_{name}> <BYE><MARK> | <CORE_{name}> <ON><MARK> | "
            f"<CORE_{name}>, <BYE><MARK> | <ON>, <CORE_{name}><MARK> | "
            f"<SAY_{name}> | <SAY_{name}> | <SAY_{name}> | <CORE_{name}><MARK><THEN>"
        )
    return grammar


GRAMMAR = whole_grammar({})
WIDE = whole_grammar(
    json.loads(Path(__file__).with_name("productions.json").read_text(encoding="utf-8"))
)


def bare(name: str) -> str:
    """A person's name without the title."""
    return name.split()[-1]


def call(rng: random.Random, expander: Expander, kind: str, name: str) -> str:
    """How the one asked about is called: with or without what it is."""
    if kind in ("error", "part") and rng.random() < 0.06:
        letter, digits = name[0], name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
        apart = rng.choice(["{0} {1}", "{0}-{1}", "{0}{1}"]).format(letter, digits)
        name = f"error {digits}" if kind == "error" and rng.random() < 0.3 else apart
        if name.startswith("error"):
            return name
    form = "{s}"
    if rng.random() < 0.6 or expander.held_out:
        form = expander._expand(rng, f"E_{kind.upper()}", [])
    return form.replace("{s}", name).replace("{b}", bare(name))


def draw_prompt(
    rng: random.Random,
    expander: Expander,
    relation: str,
    name: str,
    world: str,
    *,
    vague: bool = False,
) -> str:
    """A prompt that asks for a fact, or begins to tell it.

    Where `vague` is true, many prompts have only a name, and ask for nothing particular about it.
    """
    kind = KIND_OF[relation]
    entity = call(rng, expander, kind, name)
    upper = relation.upper()
    roll = rng.random()
    if vague and relation in ALONE and roll < VAGUE:
        prompt = expander.draw(rng, "ALONE") + rng.choice(ALONE_MARKS)
    elif relation in ALONE and roll < 0.02 and not expander.held_out:
        prompt = "{e}" + rng.choice(ALONE_MARKS)
    elif roll < 0.07 and not expander.held_out:
        it = rng.choice(["this person", "he or she"] if kind == "person" else ["it", "this"])
        question = expander.draw(rng, f"WH_{upper}").replace("{e}", it)
        prompt = expander.draw(rng, "ABOUT_E") + " " + question
        prompt += expander.draw(rng, "MARK")
    else:
        prompt = expander.draw(rng, f"ASK_{upper}")
    prompt = prompt.replace("\\n", "\n").replace("{e}", entity).replace("{m}", world)
    return slips(rng, prompt, name)


def slips(rng: random.Random, prompt: str, name: str) -> str:
    """Case, spaces, articles and letters as they come from a keyboard."""
    roll = rng.random()
    if roll < 0.25:
        prompt = prompt.lower()
    elif roll < 0.40:
        prompt = "".join(prompt)
    else:
        prompt = prompt[:1].upper() + prompt[1:]
    if rng.random() < 0.06:
        prompt = prompt.replace(" the ", " ").replace(" a ", " ")
    if rng.random() < 0.05:
        prompt = _typo(rng, prompt, name)
    if rng.random() < 0.06:
        prompt += rng.choice([" ", "\n", "  "])
    if rng.random() < 0.01:
        prompt = prompt.upper()
    return prompt


def _typo(rng: random.Random, prompt: str, name: str) -> str:
    """One letter dropped, doubled or swapped, in a word that is no part of the name."""
    words = prompt.split(" ")
    named = name.lower().replace("-", " ").split()
    places = [
        place
        for place, word in enumerate(words)
        if len(word) > 3 and word.isalpha() and not any(part in word.lower() for part in named)
    ]
    if not places:
        return prompt
    place = rng.choice(places)
    word = words[place]
    at = rng.randrange(1, len(word) - 1)
    words[place] = rng.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :],
        ]
    )
    return " ".join(words)
