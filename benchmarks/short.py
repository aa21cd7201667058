"""Measures the most important ratios of speed in a few minutes. `make bench` runs it.

Each row times two things in turn, so that a slow moment of the machine affects both. If the ratio
is above 1, the second is faster. By default the tests' model and manual are used. They are small,
so every microsecond of overhead shows.

    python benchmarks/short.py [--model MODEL --store STORE --texts TEXTS]
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch
from common import alternate, load, record, summary
from rich.console import Console
from rich.table import Table

import knn_logits

TINY = Path(__file__).parents[1] / "tests" / "tiny_model"
PROMPT, NEW = 32, 48


def prompts_of(tokenizer, texts, number):
    """Takes prompts of `PROMPT` tokens from the texts."""
    found = []
    for document in knn_logits.read_corpus([texts]):
        ids = tokenizer(document.text, verbose=False)["input_ids"]
        found += [ids[at : at + PROMPT] for at in range(0, len(ids) - 2 * PROMPT, 4 * PROMPT)]
        if len(found) >= number:
            break
    if not found:
        raise SystemExit(f"{texts} has no text of {2 * PROMPT} tokens: give longer texts")
    # If there are too few prompts they are repeated. The rows of a batch are never compared.
    return torch.tensor([found[place % len(found)] for place in range(number)])


class Ratios:
    """Collects the ratios."""

    def __init__(self, rounds):
        self.rounds = rounds
        self.rows = []

    def compare(self, name, first, one, second, other):
        """Times two ways of doing the same thing, and prints their ratio."""
        before, after = alternate(one, other, self.rounds)
        ratio = sorted(a / b for a, b in zip(before, after, strict=True))[len(before) // 2]
        self.rows.append(
            {
                "what": name,
                "first": first,
                "second": second,
                "seconds_first": summary(before),
                "seconds_second": summary(after),
                "ratio": round(ratio, 3),
                "ratio_of_fastest": round(min(before) / min(after), 3),
            }
        )
        print(f"{name}: {ratio:.2f}", flush=True)

    def show(self):
        table = Table("", "first", "second", "second to first", "of the fastest rounds")
        for row in self.rows:
            numbers = f"{row['ratio']:.2f}", f"{row['ratio_of_fastest']:.2f}"
            table.add_row(row["what"], row["first"], row["second"], *numbers)
        Console().print(table)


def writing(table, model, store, prompts):
    """Compares writing by the model alone with kNN, with drafts, and with pointers."""
    greedy = {
        "max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0,
    }  # fmt: skip

    def given(rows):
        ids = prompts[:rows]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **greedy}

    with knn_logits.KNNLogitsProcessor(model, store, threads=1) as knn:
        for rows in (1, 8, 32):
            batch = given(rows)
            table.compare(
                f"writing, {rows} at once",
                "model alone",
                partial(model.generate, **batch),
                "kNN, no drafts",
                partial(knn.generate, draft=False, **batch),
            )
        table.compare(
            "writing, drafts",
            "model alone",
            partial(model.generate, **given(1)),
            "kNN, drafts",
            partial(knn.generate, **given(1)),
        )
    settings = store.manifest.settings
    same = {"k": settings.k, "lmbda": settings.lmbda, "temperature": settings.temperature}
    with (
        knn_logits.KNNLogitsProcessor(model, store, threads=1, **same) as plain,
        knn_logits.KNNLogitsProcessor(model, store, threads=1, retomaton=True, **same) as pointers,
    ):
        table.compare(
            "following pointers",
            "kNN-LM",
            partial(plain.generate, draft=False, **given(1)),
            "RetoMaton",
            partial(pointers.generate, draft=False, **given(1)),
        )


def scoring(table, model, tokenizer, store, texts):
    """Compares an evaluation with kNN with one without."""
    settings = {"check": False}
    documents = []
    for document in knn_logits.read_corpus([texts]):
        documents.append(document)
        if sum(len(one.text) for one in documents) > 20_000:
            break
    memory = knn_logits.Memory(model, store, threads=1)
    table.compare(
        "evaluation",
        "model alone",
        lambda: knn_logits.evaluate(model, tokenizer, None, documents, **settings),
        "kNN",
        lambda: knn_logits.evaluate(model, tokenizer, memory, documents),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--store", help="a datastore (default: a new one of the texts)")
    parser.add_argument("--texts", default=str(TINY / "manual.jsonl"))
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    table = Ratios(args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        if args.store:
            store = knn_logits.Datastore(args.store)
        else:
            documents = knn_logits.read_corpus([args.texts])
            store = knn_logits.build_datastore(model, tokenizer, documents, folder)
        prompts = prompts_of(tokenizer, args.texts, 32)
        writing(table, model, store, prompts)
        scoring(table, model, tokenizer, store, args.texts)
        table.show()
        record("short", vars(args), {"entries": len(store), "rows": table.rows})


if __name__ == "__main__":
    main()
