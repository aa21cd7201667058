"""Reads public sets of questions about documents from a folder of their files; scores answers.

None of them is part of the project. The files and the GitHub repositories they come from:

    xquad.en.json                  google-deepmind/xquad; other languages are sets such as xquad.de
    nq-open-oracle.jsonl.gz        nelson-liu/lost-in-the-middle, qa_data/
    clapnq_dev_answerable.jsonl    primeqa/clapnq, annotated_data/dev/
    clapnq_dev_unanswerable.jsonl  primeqa/clapnq, annotated_data/dev/
"""

import gzip
import json
import random
import re
import string
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from knn_logits import Document

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
LANGUAGES = ("ar", "de", "el", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
# Thai and Chinese have no blanks between words.
UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3400-\u9fff]")


@dataclass
class Question:
    """A question about documents.

    Attributes:
        answers: Right answers; none where the documents have none.
        gold: The ids of the documents that have the answer, or that a reader thought might.
    """

    id: str
    question: str
    answers: list[str]
    gold: list[str]

    @property
    def answerable(self):
        return bool(self.answers)


@dataclass
class QuestionSet:
    name: str
    questions: list[Question]
    documents: list[Document]

    def sample(self, size, seed=0):
        """Returns a set of that many of the questions, and all documents."""
        size = min(size or len(self.questions), len(self.questions))
        questions = random.Random(seed).sample(self.questions, size)
        return QuestionSet(self.name, questions, self.documents)


def xquad(folder, language="en"):
    """1,190 questions about 240 paragraphs of Wikipedia, in 12 languages (Artetxe et al. 2020)."""
    questions, documents = [], []
    for article in json.loads((folder / f"xquad.{language}.json").read_text("utf-8"))["data"]:
        title = article["title"].replace("_", " ")
        for number, paragraph in enumerate(article["paragraphs"]):
            name = f"{title}:{number}"
            documents.append(Document(paragraph["context"], name, title))
            for row in paragraph["qas"]:
                answers = list(dict.fromkeys(answer["text"] for answer in row["answers"]))
                questions.append(Question(row["id"], row["question"], answers, [name]))
    return QuestionSet(f"xquad.{language}", questions, documents)


def nq_open(folder):
    """2,655 questions of NaturalQuestions-Open with the passage of each (Liu et al. 2023)."""
    questions, documents = [], {}
    with gzip.open(folder / "nq-open-oracle.jsonl.gz", "rt", encoding="utf-8") as rows:
        for number, row in enumerate(map(json.loads, rows)):
            gold = []
            for passage in row["ctxs"]:
                text, title = passage["text"], passage["title"]
                gold.append(
                    documents.setdefault(
                        (title, text), Document(text, f"{title}:{number}", title)
                    ).id
                )
            questions.append(Question(str(number), row["question"], row["answers"], gold))
    return QuestionSet("nq_open", questions, list(documents.values()))


def clapnq(folder):
    """300 questions that their passage answers, 300 that it does not (Rosenthal et al. 2024)."""
    questions, documents = [], {}
    for kind in ("answerable", "unanswerable"):
        for line in (folder / f"clapnq_dev_{kind}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            gold = []
            for passage in row["passages"]:
                text, title = passage["text"].strip(), passage["title"]
                name = f"{title}:{row['id']}"
                gold.append(documents.setdefault((title, text), Document(text, name, title)).id)
            answers = [output["answer"] for output in row["output"] if output["answer"]]
            questions.append(Question(row["id"], row["input"], answers, gold))
    return QuestionSet("clapnq", questions, list(documents.values()))


def of_file(questions, documents):
    """A set of the project's: JSON lines of questions, and of documents."""
    rows = [json.loads(line) for line in Path(questions).read_text("utf-8").splitlines()]
    texts = [json.loads(line) for line in Path(documents).read_text("utf-8").splitlines()]
    return QuestionSet(
        Path(questions).stem,
        [
            Question(
                str(row.get("id", number)),
                row["question"],
                row.get("answers", []),
                row.get("documents", []),
            )
            for number, row in enumerate(rows)
        ],
        [Document(text["text"], text["id"], text.get("title")) for text in texts],
    )


def clapnq_held(folder):
    """The 308 questions of CLAP NQ that nothing was chosen on, and all passages."""
    whole = clapnq(folder)
    rows = [row for row in whole.questions if zlib.crc32(row.id.encode()) % 2]
    return QuestionSet("clapnq_held", rows, whole.documents)


SETS = {"xquad": xquad, "nq_open": nq_open, "clapnq": clapnq, "clapnq_held": clapnq_held}
SETS |= {f"xquad.{code}": partial(xquad, language=code) for code in LANGUAGES}


def normalized(text):
    """Lower case, without punctuation and articles, single spaces (SQuAD's script)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def contained(text, answers):
    """Whether an answer stands in a text, as whole words of both in normal form."""
    padded = f" {normalized(text)} "
    found = filter(None, map(normalized, answers))
    return any((one if UNSPACED.search(one) else f" {one} ") in padded for one in found)


def exact_match(text, answers):
    return any(normalized(text) == normalized(answer) for answer in answers)


def f1(text, answers):
    """The largest F1 of the words that a text shares with an answer (SQuAD's script)."""
    return max(
        (_f1(normalized(text).split(), normalized(one).split()) for one in answers), default=0
    )


def _f1(words, gold):
    if not words or not gold:
        return float(words == gold)
    shared = sum((Counter(words) & Counter(gold)).values())
    return 2 * shared / (len(words) + len(gold))


def scores(text, answers):
    """The scores of one answer, each from 0 to 1."""
    return {
        "contained": float(contained(text, answers)),
        "exact_match": float(exact_match(text, answers)),
        "f1": f1(text, answers),
    }


def interval(values, samples=2000, seed=0):
    """The 95% interval of the mean by a bootstrap over questions; of a difference, if paired."""
    values = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(seed)
    drawn = values[random.integers(0, len(values), (samples, len(values)))].mean(axis=1)
    return [round(float(limit), 4) for limit in np.percentile(drawn, (2.5, 97.5))]
