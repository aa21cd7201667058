"""Counts what the demo answers when it is asked freely, and what it leaves unanswered.

Four sorts of questions have an answer: wordings with productions that training never had, those
of `questions/wordings.json`, which were written before there was a grammar, those of
`questions/strangers.jsonl`, whose author had not seen the grammar, and wordings as in training.
Other prompts have none: unknown names, the wrong datastore, relations that documents lack, text
about something else.

    python datastores/demo/free.py --out datastores/demo/free.json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import asking
import demo
import evaluate
import lessons
import notes
import text
import torch
from grammar import Expander
from rich.console import Console

from knn_logits import Datastore, Gate, KNNLogitsProcessor, load_gate
from knn_logits.evidence.prompt_words import unknown_names

SEEDS = {"tuning": 20, "final": 21}
# Batches of 75 whose sources are counted.
TRACED = 1
WORDINGS = demo.HERE / "questions" / "wordings.json"
STRANGERS = demo.HERE / "questions" / "strangers.jsonl"


def facts_of(kind: str) -> list[tuple[str, text.Thing, str, str]]:
    """Every fact of a corpus: its document, what it is about, its relation, the value."""
    _, pages = text.make_corpus(kind)
    return [
        (f"{kind}-{number:03}", page.thing, relation, value)
        for number, page in enumerate(pages)
        for relation, value in page.thing.facts.items()
    ]


def relations_of(kind: str) -> list[str]:
    return [r for one in text.KINDS[kind] for r in text.words.RELATIONS[one]]


def row(prompt: str, fact: tuple[str, text.Thing, str, str]) -> dict[str, str]:
    document, _, relation, value = fact
    return {"prompt": prompt, "document": document, "relation": relation, "answer": value}


def grammar_questions(kind: str, count: int, seed: int, *, held_out: bool) -> list[dict[str, str]]:
    """As many questions of each relation, by the grammar."""
    rng = random.Random(f"{kind} {seed} {held_out}")
    expander = Expander(asking.WIDE, held_out=held_out)
    world, _ = text.make_corpus(kind)
    facts = facts_of(kind)
    rows = []
    for relation in relations_of(kind):
        of = [fact for fact in facts if fact[2] == relation]
        for fact in rng.choices(of, k=max(1, count // len(relations_of(kind)))):
            prompt = asking.draw_prompt(rng, expander, relation, fact[1].name, world.name)
            rows.append(row(prompt, fact))
    return rows


def written_questions(kind: str, seed: int, times: int) -> list[dict[str, str]]:
    """The wordings that were written first, each for some facts."""
    rng = random.Random(f"{kind} {seed} written")
    wordings = json.loads(WORDINGS.read_text(encoding="utf-8"))
    facts = facts_of(kind)
    rows = []
    for relation in relations_of(kind):
        of = [fact for fact in facts if fact[2] == relation]
        for wording in wordings[relation]:
            for fact in rng.sample(of, times):
                name = fact[1].name
                if wording[:1].islower() and rng.random() < 0.4:
                    name = name.lower()
                rows.append(row(wording.replace("{s}", name), fact))
    return rows


def names_alone(kind: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Prompts that name something and ask for nothing particular, with forms kept from training.

    Any fact of what is named answers such a prompt.
    """
    rng = random.Random(f"{kind} {seed} alone")
    expander = Expander(asking.WIDE, held_out=True)
    values: dict[tuple[str, str], list[str]] = {}
    for document, thing, _, value in facts_of(kind):
        values.setdefault((thing.name, document), []).append(value)
    rows = []
    for name, document in rng.choices(sorted(values), k=count):
        prompt = expander.draw(rng, "ALONE").replace("{e}", name) + rng.choice(["", "?", "."])
        answers = values[name, document]
        rows.append({"prompt": prompt, "document": document, "relation": "any", "answers": answers})
    return rows


def strangers_questions(kind: str, *, answerable: bool = True) -> list[dict[str, Any]]:
    """Prompts of a person who had read the corpora, but neither the grammar nor other questions.

    Six of each corpus ask the other way round, or for what is told beside the facts. No relation of
    the training has these.

    Args:
        kind: The corpus.
        answerable: Whether to return those that a document answers, or those that none does.
    """
    lines = STRANGERS.read_text(encoding="utf-8").splitlines()
    rows = [one for one in map(json.loads, lines) if one["corpus"] == kind]
    return [one for one in rows if ("answers" in one) == answerable]


def answers_to(row: dict[str, Any]) -> list[str]:
    """The values that answer a question, each of which will do."""
    return row["answers"] if "answers" in row else [row["answer"]]


def is_right(row: dict[str, Any], text: str) -> bool:
    """Whether a text has a value that answers the question."""
    return any(answer in text for answer in answers_to(row))


def unanswerable(kind: str, count: int, seed: int, *, held_out: bool) -> list[dict[str, str]]:
    """Prompts that no document of a corpus answers, and why."""
    rng = random.Random(f"{kind} {seed} unanswerable {held_out}")
    expander = Expander(asking.WIDE, held_out=held_out)
    world, pages = text.make_corpus(kind)
    other = next(one for one in text.KINDS if one != kind)
    # A name may stand in a document that is not about it, as a part does that an error needs.
    known = set(" ".join(page.text.replace(".", "") for page in pages).split())
    namer = text.Namer(rng, kept=True)
    rows = []
    for place in range(count):
        why = ("unknown", "unknown", "wrong datastore", "lacking", "something else")[place % 5]
        relation = rng.choice(relations_of(kind))
        name = rng.choice([p.thing for p in pages]).name
        if why == "unknown":
            while True:
                name = namer.thing_name(asking.KIND_OF[relation])
                if name.split()[-1] not in known:
                    break
            prompt = asking.draw_prompt(rng, expander, relation, name, world.name)
        elif why == "wrong datastore":
            _, thing, relation, _ = rng.choice(facts_of(other))
            prompt = asking.draw_prompt(rng, expander, relation, thing.name, world.name)
        elif why == "lacking":
            prompt = notes.idle_question(rng, name)
            while name not in prompt:
                prompt = notes.idle_question(rng, name)
            prompt = asking.slips(rng, prompt, name)
        else:
            prompt = asking.slips(rng, rng.choice(notes.make_notes(rng, 3)).others[-1], "-")
        rows.append({"prompt": prompt, "why": why, "relation": relation})
    return rows


def is_silent(answer: str) -> bool:
    """Whether an answer says that nothing was found."""
    return lessons.SILENCE.strip().rstrip(".") in answer


def asked(
    model: Any,
    tokenizer: Any,
    store: Datastore | None,
    prompts: list[str],
    lmbda: float | Gate | None = None,
) -> list[tuple[str, str | None]]:
    """What is written to each prompt, and the document with the largest part in it.

    Without a `lmbda`, a datastore's own settings hold.
    """
    if store is None:
        found = evaluate.answers(model, tokenizer, prompts, None)
    else:
        with KNNLogitsProcessor(model, store, lmbda=lmbda) as knn:
            found = evaluate.answers(model, tokenizer, prompts, knn, TRACED)
    return [(text, evaluate.named_source(trace) if trace else None) for text, trace in found]


def count_answers(
    rows: list[dict[str, Any]], answers: list[tuple[str, str | None]]
) -> dict[str, Any]:
    """Shares of right answers, of right ones with the right source, and of refusals."""
    right = [is_right(row, text) for row, (text, _) in zip(rows, answers, strict=True)]
    sources = [
        source == row["document"]
        for row, (_, source), good in zip(rows, answers, right, strict=True)
        if good and source is not None
    ]
    missed = Counter(row["relation"] for row, good in zip(rows, right, strict=True) if not good)
    result: dict[str, Any] = {
        "questions": len(rows),
        "right": round(sum(right) / len(rows), 4),
        "refused": round(sum(is_silent(text) for text, _ in answers) / len(rows), 4),
    }
    if sources:
        result["sources"] = round(sum(sources) / len(sources), 4)
        result["sources of"] = len(sources)
    return result | {"missed": dict(missed.most_common())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=tuple(SEEDS), default="final")
    parser.add_argument("--model", type=Path, default=demo.MODEL)
    parser.add_argument("--stores", type=Path, default=demo.STORES)
    parser.add_argument("--gates", type=Path, default=demo.GATES)
    parser.add_argument("--lmbda", type=float, help="a constant weight in place of the gate")
    parser.add_argument("--questions", type=int, default=300, help="of each corpus")
    parser.add_argument("--unanswerable", type=int, default=150, help="of each corpus")
    parser.add_argument("--times", type=int, default=2, help="facts for each written wording")
    parser.add_argument("--show", type=int, default=0, help="so many wrong answers of each sort")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = demo.load_model(options.model)
    results: list[dict[str, Any]] = []
    seed = SEEDS[options.half]
    for kind in demo.KINDS:
        console = Console(stderr=True)
        store = demo.open_store(kind, model, tokenizer, options.stores, console)
        gate: float | Gate = options.lmbda
        if gate is None:
            gate = load_gate(demo.gate_file(kind, folder=options.gates))
        sorts = {
            "as in training": grammar_questions(kind, options.questions, seed, held_out=False),
            "new productions": grammar_questions(kind, options.questions, seed, held_out=True),
            "written first": written_questions(kind, seed, options.times),
            "a name alone": names_alone(kind, seed, options.questions // 2),
            "a stranger's": strangers_questions(kind),
        }
        for sort, rows in sorts.items():
            prompts = [one["prompt"] for one in rows]
            for memory in (None, store):
                begin = time.perf_counter()
                if memory is None and sort == "as in training":
                    continue
                answers = asked(model, tokenizer, memory, prompts, gate)
                found = count_answers(rows, answers)
                results.append({"corpus": kind, "sort": sort, "knn": memory is not None, **found})
                results[-1]["seconds"] = round(time.perf_counter() - begin, 1)
                print(json.dumps(results[-1]), flush=True)
            wrong = [(r, a) for r, a in zip(rows, answers, strict=True) if not is_right(r, a[0])]
            for one, (said, _) in wrong[: options.show]:
                print(f"    {one['prompt']!r} -> {said!r} ({one['relation']}: {answers_to(one)})")
        unanswered = {
            "unanswerable": unanswerable(kind, options.unanswerable, seed, held_out=False),
            "unanswerable, new productions": unanswerable(
                kind, options.unanswerable, seed, held_out=True
            ),
            "unanswerable, a stranger's": [
                {**one, "why": one["style"]} for one in strangers_questions(kind, answerable=False)
            ],
        }
        for sort, rows in unanswered.items():
            prompts = [one["prompt"] for one in rows]
            with KNNLogitsProcessor(model, store, lmbda=gate) as knn:
                answers = evaluate.answers(model, tokenizer, prompts, knn, 0)
            left = Counter(
                r["why"] for r, (a, _) in zip(rows, answers, strict=True) if is_silent(a)
            )
            total = Counter(one["why"] for one in rows)
            shares = {why: round(left[why] / n, 4) for why, n in total.items()}
            told: dict[str, Any] = {"told apart": round(left.total() / len(rows), 4), "by": shares}
            named = [
                is_silent(a) or bool(unknown_names(tokenizer, prompt, [store]))
                for prompt, (a, _) in zip(prompts, answers, strict=True)
            ]
            told["or named as unknown"] = round(sum(named) / len(rows), 4)
            results.append({"corpus": kind, "sort": sort, "questions": len(rows), **told})
            print(json.dumps(results[-1]), flush=True)
            wrong = [(r, a) for r, a in zip(rows, answers, strict=True) if not is_silent(a[0])]
            for one, (said, _) in wrong[: options.show]:
                print(f"    {one['why']}: {one['prompt']!r} -> {said!r}")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
