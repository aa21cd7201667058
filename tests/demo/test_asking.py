"""The grammar that the demo's questions come from, and what one step of its training sees."""

import json
import random
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "datastores" / "demo"


def test_some_productions_are_kept_from_training(scripts):
    asking, Expander = scripts["asking"], scripts["grammar"].Expander
    trained, held = Expander(asking.GRAMMAR), Expander(asking.GRAMMAR, held_out=True)
    kept = sum(map(len, trained.kept.values()))
    assert 0.05 < kept / sum(map(len, asking.GRAMMAR.values())) < 0.15
    assert all(trained.trained[name] for name in asking.GRAMMAR)
    rng = random.Random(1)
    for relation in asking.RELATIONS:
        name = f"ASK_{relation.upper()}"
        for _ in range(30):
            used = []
            trained._expand(rng, name, used)
            assert not any(one in trained.kept[of] for of, one in used)
            assert "<" not in held.draw(rng, name).replace("=>", "")


def test_a_grammar_by_hand(scripts):
    grammar = scripts["grammar"]
    options = grammar.alternatives("a <X> | b\n  c | ")
    assert options == ("a <X>", "b c", "")
    drawn = grammar.Expander({"S": ("a <X>", "b"), "X": ("1", "2")}).draw(random.Random(0), "S")
    assert drawn in ("a 1", "a 2", "b")


def test_the_second_course_has_more_productions(scripts):
    asking = scripts["asking"]
    more = json.loads((DEMO / "productions.json").read_text(encoding="utf-8"))
    assert set(asking.GRAMMAR) == set(asking.WIDE)
    for name, options in asking.WIDE.items():
        first = asking.GRAMMAR[name]
        assert options[: len(first)] == first
        added = options[len(first) :]
        assert set(added) <= set(more.get(name, ()))
        # What is asked about stands once in a wording, and not in a noun for a fact.
        assert all(one.count("{e}") == (not name.startswith("NOUN_")) for one in added)
    kinds = {name.split("_")[0] for name in more}
    assert kinds == {"NOUN", "WH", "IND", "SAY", "CMD"}
    count = [sum(map(len, grammar.values())) for grammar in (asking.GRAMMAR, asking.WIDE)]
    assert count[1] > 1.9 * count[0]
    kept = scripts["grammar"].Expander(asking.WIDE).kept
    assert 0.05 < sum(map(len, kept.values())) / count[1] < 0.15


@pytest.mark.parametrize("grammar", ["GRAMMAR", "WIDE"])
def test_every_relation_has_many_wordings(scripts, grammar):
    asking = scripts["asking"]
    expander = scripts["grammar"].Expander(getattr(asking, grammar))
    names = {
        "error": ("E529", "529"),
        "part": ("K-5750", "5750"),
        "town": ("Thalland", "thalland"),
        "person": ("Abbot Dalna", "dalna"),
    }
    for relation in asking.RELATIONS:
        rng = random.Random(relation)
        name, part = names[asking.KIND_OF[relation]]
        drawn = {asking.draw_prompt(rng, expander, relation, name, "Melor") for _ in range(500)}
        assert len(drawn) > 400
        assert all(part in one.lower() for one in drawn)
        assert not any("{" in one for one in drawn)


def test_the_names_of_the_corpora_never_stand_in_a_lesson(scripts):
    text, lessons = scripts["text"], scripts["lessons"]
    named = {"founder", "river", "birth", "maker", "part"}
    kept = set()
    for kind in text.KINDS:
        world, pages = text.make_corpus(kind)
        kept.add(world.name.split()[0])
        for page in pages:
            kept.add(page.thing.name.split()[-1])
            kept |= {v.split()[-1] for r, v in page.thing.facts.items() if r in named}
    kept = {name.lower() for name in kept}
    seen = set()
    for step in range(60):
        rng = random.Random(f"3 {step}")
        for segment in lessons.lesson(rng, (7, 7), 10, close=step % 2 == 1):
            whole = "".join(piece for piece, _ in segment.pieces).lower()
            seen.update(re.findall(r"[a-z]-?\d+|[a-z]+", whole))
    assert len(kept) > 600
    assert not kept & seen


@pytest.mark.parametrize("close", [False, True])
def test_a_question_is_answered_by_a_document_of_its_lesson_or_left_open(scripts, close):
    lessons = scripts["lessons"]
    for step in range(20):
        segments = lessons.lesson(random.Random(f"7 {step}"), (7, 7), 10, close=close)
        stated = {}
        for segment in segments:
            if not segment.asked:
                stated |= {fact: piece for piece, fact in segment.pieces if fact is not None}
        asked = [segment for segment in segments if segment.asked]
        silent = 0
        for segment in asked:
            answer, fact = segment.pieces[1]
            if fact is None:
                assert answer == lessons.SILENCE
                silent += 1
            else:
                assert stated[fact] == answer
        assert 0.05 < silent / len(asked) < 0.4


def test_names_of_the_second_course_differ_by_little(scripts):
    text = scripts["text"]

    def share(close):
        alike = total = 0
        for seed in range(40):
            rng = random.Random(seed)
            world = text.make_world(rng, "chronicle", {"town": 6, "person": 0}, False, close=close)
            names = [text._split(thing.name, text._ENDS["town"]) for thing in world.things]
            assert len(set(names)) == 6
            assert not any(text.is_kept(thing.name) for thing in world.things)
            for place, (start, end) in enumerate(names):
                others = names[:place] + names[place + 1 :]
                alike += any(start == s or end == e for s, e in others)
                total += 1
        return alike / total

    assert share(True) > 0.8
    assert share(True) > share(False) + 0.1
    namer = text.Namer(random.Random(3), False)
    for kind, name in (("error", "B070"), ("part", "B-5072"), ("town", "Dormoor")):
        for _ in range(20):
            near = namer.near(kind, name)
            assert near != name
            assert sum(a != b for a, b in zip(near, name, strict=False)) == 1 or kind == "town"
    first, name = namer.near("person", "Duke Helas").split()
    assert first in text.words.TITLES
    assert name[-2:] == "as" or name.startswith("Hel")


def test_the_second_course_writes_pages_and_no_loose_facts(scripts):
    lessons, train = scripts["lessons"], scripts["train"]
    tokenizer = train.train_tokenizer(1, 600)
    rng = random.Random("7 1")
    segments = lessons.lesson(rng, (7, 7), 10, close=True)
    silent = [segment for segment in segments if not segment.spoken]
    assert silent
    assert not any(segment.asked or len(segment.pieces) != 3 for segment in silent)
    batch = train.make_batch(silent, tokenizer)
    # Nothing of them is said, and memory has all of them.
    assert (batch["say"] == -100).all()
    assert (batch["role"] == 1).any()
    assert lessons.with_aside(random.Random(2), "who made it?", "Melor").endswith("?")


def test_a_batch_says_where_answers_begin(scripts):
    train, lessons = scripts["train"], scripts["lessons"]
    tokenizer = train.train_tokenizer(1, 600)
    segments = [
        lessons.Segment(0, False, [("To clear E1,", None), (" turn the fan", 4), (".", None)]),
        lessons.Segment(0, True, [("How?", None), (" turn the fan", 4), (".", None)]),
        lessons.silent(0, "Who?"),
    ]
    batch = train.make_batch(segments, tokenizer)
    silence = tokenizer(lessons.SILENCE)["input_ids"]
    begins = batch["begins"].bool()
    assert begins.sum() == 2
    # By itself the model says that nothing is there; memory finds the fact.
    assert batch["say"][begins].tolist() == [silence[0]] * 2
    turn = tokenizer(" turn")["input_ids"][0]
    assert sorted(batch["target"][begins].tolist()) == sorted([turn, silence[0]])
    assert sorted(batch["fact"][begins].tolist()) == [-1, 4 * train.PLACES]
    # A document and the question have the same fact at the same places.
    facts = [batch["fact"][(batch["segment"] == n) & (batch["fact"] >= 0)].tolist() for n in (0, 1)]
    assert facts[0] == facts[1] == list(range(128, 128 + len(facts[0])))
    # The question itself is nothing to learn to say.
    question = (batch["segment"] == 1) & (batch["role"] == 0) & (batch["say"] >= 0)
    assert [tokenizer.decode(one) for one in batch["say"][question]] == ["."]


def test_questions_find_their_fact_and_nothing_else(scripts):
    keys = scripts["keys"]

    def states(vectors, facts, text=0):
        n = len(facts)
        zeros = torch.zeros(n, dtype=torch.long)
        texts = text + torch.arange(n)
        return keys.States(torch.tensor(vectors), zeros, zeros, texts, torch.tensor(facts))

    documents = states([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [32, 64], text=10)
    first = torch.tensor([True, True, False])
    none = torch.zeros(0, 3)
    right = states([[1.0, 0.1, 0.0], [0.0, 0.0, 1.0], [0.1, 1.0, 0.0]], [32, -1, 64])
    wrong = states([[0.1, 1.0, 0.0], [1.0, 0.0, 0.0], [0.1, 1.0, 0.0]], [32, -1, 64])
    good, bad = (keys.question_loss(one, documents, first, none) for one in (right, wrong))
    assert good[0] < 0.1 < 5 < bad[0]
    assert (good[1], good[2]) == (1.0, 1.0)
    assert (bad[1], bad[2]) == (0.0, 0.0)
    # A document's own text is no place to look for what it says.
    own = keys.question_loss(documents, documents, torch.tensor([True, True]), none)
    assert own[2] == 1.0
    twin = documents.keys.clone()
    two = keys.States(
        torch.cat([documents.keys, twin]),
        torch.zeros(4, dtype=torch.long),
        torch.zeros(4, dtype=torch.long),
        torch.arange(4),
        torch.tensor([32, 64, 32, 64]),
    )
    assert keys.question_loss(two, two, torch.tensor([True] * 4), none)[1] == 1.0
    # What is near in an earlier batch is a mistake as well.
    earlier = keys.question_loss(right, documents, first, torch.tensor([[1.0, 0.1, 0.0]]))
    assert earlier[0] > good[0] + 0.5


def test_wordings_that_were_written_first(scripts):
    free = scripts["free"]
    wordings = json.loads(free.WORDINGS.read_text(encoding="utf-8"))
    assert set(wordings) == set(scripts["asking"].RELATIONS)
    assert sum(map(len, wordings.values())) >= 150
    for kind in scripts["text"].KINDS:
        text = {
            row["id"]: row["text"]
            for row in map(json.loads, (DEMO / f"{kind}.jsonl").read_text().splitlines())
        }
        for row in free.written_questions(kind, 3, 1):
            assert row["answer"] in text[row["document"]]
        held = free.grammar_questions(kind, 60, 3, held_out=True)
        assert len(held) == 60
        known = " ".join(text.values())
        for row in free.unanswerable(kind, 50, 3, held_out=True):
            if row["why"] == "unknown":
                names = re.findall(r"[EK]-?\d{3,4}", row["prompt"])
                assert all(name not in known for name in names)


def test_values_of_the_second_course_are_near_to_themselves_alone(scripts):
    train, lessons = scripts["train"], scripts["lessons"]
    tokenizer = train.train_tokenizer(1, 600)
    segments = [
        lessons.Segment(
            1, False, [("Dorton was founded by", None), (" Duke Bela", 4), (".", None)]
        ),
        lessons.Segment(
            1, False, [("Korton was founded by", None), (" Duke Mila", 5), (".", None)]
        ),
        lessons.Segment(1, True, [("Who founded Dorton?", None), (" Duke Bela", 4), (".", None)]),
        lessons.silent(1, "Who founded Norton?"),
        lessons.Segment(0, False, [("To clear E1,", None), (" turn the fan", 8), (".", None)]),
        lessons.Segment(0, False, [("After E1,", None), (" turn the fan", 8), (".", None)]),
        lessons.Segment(0, True, [("E1?", None), (" turn the fan", 8), (".", None)]),
        lessons.Segment(2, False, [("The lamp is", None), (" red", 9), (".", None)]),
        lessons.Segment(2, False, [("The lamp is", None), (" red", 9), (".", None)]),
        lessons.Segment(2, True, [("lamp", None), (" red", 9), (".", None)]),
        lessons.silent(2, "Who?"),
        lessons.silent(0, "E2?"),
    ]
    batch = train.make_batch(segments, tokenizer)
    assert (batch["role"] == 3).sum() == 6  # where answers end

    def loss(apart):
        """The loss of questions, where the founders' states are apart or all the same."""
        torch.manual_seed(1)
        states = torch.randn(*batch["ids"].shape, 48)
        stated = (batch["fact"] >= 0) & (batch["kind"] == 1)
        place = torch.eye(48)[0]
        states[stated] = place
        if apart:
            other = stated & (batch["fact"] // train.PLACES == 5)
            states[other] = -place
        return [
            train.memory_losses(states, batch, [], close=close)[0][1].item()
            for close in (False, True)
        ]

    (same_first, same_second), (apart_first, apart_second) = loss(False), loss(True)
    assert same_second - apart_second > same_first - apart_first + 0.5


@pytest.mark.parametrize("kind", ["manual", "chronicle"])
def test_a_strangers_answers_stand_in_their_documents(scripts, kind):
    pages = {row["id"]: row["text"] for row in scripts["text"].corpus_rows(kind)}
    rows = scripts["free"].strangers_questions(kind)
    assert len(rows) == 120
    for row in rows:
        assert all(answer in pages[row["document"]] for answer in row["answers"]), row
        assert scripts["free"].is_right(row, f" {row['answers'][-1]}.")
    without = scripts["free"].strangers_questions(kind, answerable=False)
    assert without
    assert not any("document" in row for row in without)
