"""The grammar that the demo's questions come from, and what one step of its training sees."""

import json
import random
import re
from pathlib import Path

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


def test_every_relation_has_many_wordings(scripts):
    asking = scripts["asking"]
    expander = scripts["grammar"].Expander(asking.GRAMMAR)
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
        for segment in lessons.lesson(random.Random(f"3 {step}"), 7, 10):
            whole = "".join(piece for piece, _ in segment.pieces).lower()
            seen.update(re.findall(r"[a-z]-?\d+|[a-z]+", whole))
    assert len(kept) > 600
    assert not kept & seen


def test_a_question_is_answered_by_a_document_of_its_lesson_or_left_open(scripts):
    lessons = scripts["lessons"]
    for step in range(20):
        segments = lessons.lesson(random.Random(f"7 {step}"), 7, 10)
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
    assert [tokenizer.decode(one) for one in batch["say"][question]] == [".", "<|endoftext|>"]


def test_questions_find_their_fact_and_nothing_else(scripts):
    keys = scripts["keys"]

    def states(vectors, facts):
        n = len(facts)
        zeros = torch.zeros(n, dtype=torch.long)
        return keys.States(
            torch.tensor(vectors), zeros, zeros, torch.arange(n), torch.tensor(facts)
        )

    documents = states([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [32, 64])
    first = torch.tensor([True, True, False])
    none = torch.zeros(0, 3)
    right = states([[1.0, 0.1, 0.0], [0.0, 0.0, 1.0], [0.1, 1.0, 0.0]], [32, -1, 64])
    wrong = states([[0.1, 1.0, 0.0], [1.0, 0.0, 0.0], [0.1, 1.0, 0.0]], [32, -1, 64])
    good, bad = (keys.question_loss(one, documents, first, none) for one in (right, wrong))
    assert good[0] < 0.1 < 5 < bad[0]
    assert (good[1], good[2]) == (1.0, 1.0)
    assert (bad[1], bad[2]) == (0.0, 0.0)
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
