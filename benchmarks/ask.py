"""Compares answers to questions about documents: by a model alone, by reading, and by `ask`.

    python benchmarks/ask.py MODEL --data FOLDER --set xquad [--sample 150] [--ways passage ask]

FOLDER has public sets; `question_sets.py` says where they are from. The set `documents` is the
project's own (`ask_questions.jsonl` about `ask_documents.jsonl`), and `general` asks the questions
of `general_questions.jsonl` with the documents of the former. A way of answering:

    alone      the question, in the model's chat template
    passage    the best paragraph of BM25 before it, and "Answer in a few words." after it
    sentence   no model: the sentence of that paragraph with most of the question's words, by idf
    ask        knn_logits.Asking as it comes, and `ask, NAME=VALUE` with a setting of AskConfig

Each answer has at most 40 tokens, a quoted sentence as many as it has. Tokens a second compare ways
with `--batch 1` only, since `ask` answers one question at a time.
"""

import argparse
import json
import math
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import bm25s
import Stemmer
import torch
from common import add_model_options, clock_of, load, record
from question_sets import SETS, QuestionSet, contained, interval, of_file, scores

import knn_logits

HERE = Path(__file__).parent
MOST_TOKENS = 40
SHORT = "Answer in a few words."
STEMMER = Stemmer.Stemmer("english")


def questions_of(name, data, sample):
    if name in SETS:
        return SETS[name](data).sample(sample)
    own = of_file(HERE / "ask_questions.jsonl", HERE / "ask_documents.jsonl")
    if name == "documents":
        return own.sample(sample)
    general = of_file(HERE / "general_questions.jsonl", HERE / "ask_documents.jsonl")
    return QuestionSet("general", general.questions, own.documents).sample(sample)


def stems(text):
    return [STEMMER.stemWord(word) for word in re.findall(r"\w+", text.lower())]


def best_documents(questions):
    """The document that BM25 ranks first for each question, its title among its words."""

    def tokens(texts):
        return bm25s.tokenize(texts, stopwords="en", stemmer=STEMMER, show_progress=False)

    documents = questions.documents
    index = bm25s.BM25()
    index.index(tokens([f"{row.title or ''} {row.text}" for row in documents]), show_progress=False)
    asked = tokens([row.question for row in questions.questions])
    best, _ = index.retrieve(asked, k=1, show_progress=False)
    return [documents[row] for row in best[:, 0]]


def sentence_of(questions, documents):
    """The sentence of each question's document that shares most with it, by idf."""
    count = Counter(word for row in questions.documents for word in set(stems(row.text)))
    size = len(questions.documents)

    def shared(question, sentence):
        words = set(stems(question)) & set(stems(sentence))
        return math.fsum(math.log(1 + (size - count[word] + 0.5) / (count[word] + 0.5))
                         for word in words)  # fmt: skip

    return [
        max(re.split(r"(?<=[.!?])\s+", document.text), key=lambda text: shared(row.question, text))
        for row, document in zip(questions.questions, documents, strict=True)
    ]


@torch.no_grad()
def written(model, tokenizer, messages, batch):
    """What the model writes after each message: its text, its tokens, whether it ended."""
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
        for message in messages
    ]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in prompts]
    # Prompts of about the same length share a batch.
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    end, answers = tokenizer.eos_token_id, [None] * len(prompts)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        size = max(len(prompts[row]) for row in rows)
        pads = [[end] * (size - len(prompts[row])) for row in rows]
        ids = torch.tensor([pad + prompts[row] for pad, row in zip(pads, rows, strict=True)])
        mask = torch.tensor([[0] * len(pad) + [1] * (size - len(pad)) for pad in pads])
        output = model.generate(
            ids.to(model.device), attention_mask=mask.to(model.device),
            max_new_tokens=MOST_TOKENS, do_sample=False, pad_token_id=end
        )  # fmt: skip
        for row, tokens in zip(rows, output[:, size:].tolist(), strict=True):
            ended = end in tokens
            tokens = tokens[: tokens.index(end)] if ended else tokens
            answers[row] = {"text": tokenizer.decode(tokens), "tokens": len(tokens), "ended": ended}
    return answers


def by_ask(model, tokenizer, store, questions, way):
    """What `Asking` answers."""
    settings = dict(part.strip().split("=") for part in way.split(",")[1:])
    settings = {name: json.loads(value) if value[0] in "0123456789tf" else value
                for name, value in settings.items()}  # fmt: skip
    config = knn_logits.AskConfig(**{"max_new_tokens": MOST_TOKENS, **settings})
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, store), config)
    answers = []
    for row in questions.questions:
        started = time.perf_counter()
        answer = asking.answer(row.question)
        spent = time.perf_counter() - started
        tokens = len(tokenizer(answer.text, add_special_tokens=False)["input_ids"])
        found = [part.sentence.text for part in asking.find(row.question)[:10]]
        right = [contained(text, row.answers) for text in found]
        answers.append({"text": answer.text, "tokens": tokens,
                        "ended": answer.quoted or tokens < MOST_TOKENS,
                        "answered": answer.answered, "alone": answer.alone,
                        "right_sentence_within": [any(right[:k]) for k in (1, 3, 10)],
                        "seconds": spent})  # fmt: skip
    return answers


def figures(answers, questions, alone, passage):
    """The figures of one way, with 95% intervals, and against other ways, question by question."""
    rows = [at for at, row in enumerate(questions.questions) if row.answerable]
    got = [scores(answers[at]["text"], questions.questions[at].answers) for at in rows]
    result = {"questions": len(rows)}
    for name in got[0] if got else ():
        values = [row[name] for row in got]
        result[name] = round(sum(values) / len(values), 4)
        result[f"{name}_interval"] = interval(values)
    for name in ("ended", "tokens"):
        result[name] = round(sum(answers[at][name] for at in rows) / max(1, len(rows)), 3)

    def right(others):
        return [contained(others[at]["text"], questions.questions[at].answers) for at in rows]

    if passage is not None and passage is not answers:
        more = [a["contained"] - b for a, b in zip(got, right(passage), strict=True)]
        result["contained_more_than_passage"] = [round(sum(more) / len(more), 4), *interval(more)]
    if alone is not None and alone is not answers:
        kept = [row["contained"] for row, was in zip(got, right(alone), strict=True) if was]
        result["right_alone"], result["of_these_kept"] = len(kept), int(sum(kept))
    if "answered" in answers[0]:
        said = [row["answered"] for row in answers]
        no = [at for at, row in enumerate(questions.questions) if not row.answerable]
        result["answered"] = sum(said[at] for at in rows)
        result["answered_and_right"] = sum(
            row["contained"] and said[at] for at, row in zip(rows, got, strict=True)
        )
        result["answered_and_wrong"] = int(result["answered"] - result["answered_and_right"])
        for place, k in enumerate((1, 3, 10)):
            hits = [answers[at]["right_sentence_within"][place] for at in rows]
            result[f"right_sentence_within_{k}"] = round(sum(hits) / max(1, len(rows)), 4)
        result["model_answered_alone"] = sum(row["alone"] for row in answers)
        result["median_seconds"] = round(median(row["seconds"] for row in answers), 3)
        if no:
            refused = sum(not said[at] for at in no)
            accuracy = (result["answered"] / len(rows) + refused / len(no)) / 2
            result |= {"unanswerable": len(no), "refused": refused,
                       "balanced_accuracy": round(accuracy, 4)}  # fmt: skip
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("--data", type=Path, help="the folder of the public sets")
    parser.add_argument("--set", choices=[*SETS, "documents", "general"], default="documents")
    parser.add_argument("--sample", type=int, help="so many questions (default: all)")
    parser.add_argument("--ways", nargs="+", default=["alone", "passage", "sentence", "ask"])
    parser.add_argument("--store", help="a datastore of the set's documents (default: a new one)")
    parser.add_argument("--encoder", help="of the new datastore; empty for words alone")
    parser.add_argument("--batch", type=int, default=8, help="texts that a model writes at once")
    parser.add_argument("--answers", type=Path, help="a file for all answers")
    parser.add_argument("--name", default="ask", help="of the file of results, before the set's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = clock_of(options.device)
    questions = questions_of(options.set, options.data, options.sample)
    if options.model.endswith(".gguf"):
        model = knn_logits.GGUFModel(options.model)
        tokenizer = model.tokenizer
    else:
        model, tokenizer = load(options.model, options.dtype, options.device)
    asked, answers, seconds = [row.question for row in questions.questions], {}, {}
    documents = best_documents(questions)
    with tempfile.TemporaryDirectory() as room:
        store = None
        if any(way.startswith("ask") for way in options.ways):
            store = (
                knn_logits.Datastore(options.store) if options.store else
                knn_logits.build_datastore(model, tokenizer, questions.documents, room,
                                           store_keys=False, calibrate=False,
                                           encoder=options.encoder)
            )  # fmt: skip
        for way in options.ways:
            started, busy = time.perf_counter(), clock()
            if way == "alone":
                answers[way] = written(model, tokenizer, asked, options.batch)
            elif way == "passage":
                pairs = zip(documents, asked, strict=True)
                messages = [
                    f"{document.text}\n\n{question} {SHORT}" for document, question in pairs
                ]
                answers[way] = written(model, tokenizer, messages, options.batch)
            elif way == "sentence":
                texts = sentence_of(questions, documents)
                ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
                answers[way] = [{"text": text, "tokens": len(row), "ended": True}
                                for text, row in zip(texts, ids, strict=True)]  # fmt: skip
            else:
                answers[way] = by_ask(model, tokenizer, store, questions, way)
            spent = clock() - busy
            tokens = sum(row["tokens"] for row in answers[way])
            seconds[way] = {
                "seconds": round(time.perf_counter() - started, 1),
                "processor_seconds": round(spent, 1),
                "tokens_per_processor_second": round(tokens / spent, 2),
            }
    gold = [document.id in row.gold
            for document, row in zip(documents, questions.questions, strict=True)
            if row.gold]  # fmt: skip
    result = {
        "documents": len(questions.documents),
        "best_document_is_right": round(sum(gold) / max(1, len(gold)), 4),
        "ways": {
            way: figures(rows, questions, answers.get("alone"), answers.get("passage"))
            | seconds.get(way, {})
            for way, rows in answers.items()
        },
    }
    if options.answers:
        lines = [
            {"id": row.id, "question": row.question, "answers": row.answers,
             **{way: rows[at] for way, rows in answers.items()}}
            for at, row in enumerate(questions.questions)
        ]  # fmt: skip
        options.answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {name: value for name, value in vars(options).items() if name != "answers"}
    settings |= {"data": options.data and options.data.name}
    record(f"{options.name}_{options.set}", settings, result)


if __name__ == "__main__":
    main()
