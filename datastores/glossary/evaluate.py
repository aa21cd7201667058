"""How often a glossary's terms are translated as it says, without and with kNN.

python datastores/glossary/evaluate.py MODEL STORE [--num-beams 5] [--out FILE]

STORE is made of pairs.jsonl: knn-logits build MODEL datastores/glossary/pairs.jsonl --out STORE
"""

import argparse
import json
from pathlib import Path

import sacrebleu
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import knn_logits

HERE = Path(__file__).parent


def share(texts, rows):
    """Share of the translations that hold their term, word for word."""
    right = [row["term"] in text for text, row in zip(texts, rows, strict=True)]
    return sum(right) / len(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store", nargs="+")
    parser.add_argument("--num-beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--lmbda", type=float)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--k", type=int)
    parser.add_argument("--questions", type=Path, default=HERE / "questions.jsonl")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model).eval()
    lines = options.questions.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    sources, targets = [row["source"] for row in rows], [row["target"] for row in rows]
    given = {name: getattr(options, name) for name in ("k", "lmbda", "temperature")}
    results = {"questions": len(rows), **given, "by_beams": {}}
    for beams in options.num_beams:
        without = knn_logits.translate(model, tokenizer, sources, num_beams=beams)
        found = knn_logits.translate(
            model, tokenizer, sources, options.store, num_beams=beams, **given
        )
        bleus = sacrebleu.corpus_bleu(without, [targets]), sacrebleu.corpus_bleu(found, [targets])
        results["by_beams"][beams] = {
            "terms": {"model": share(without, rows), "knn": share(found, rows)},
            "bleu": {"model": bleus[0].score, "knn": bleus[1].score},
        }
        for row, one, other in list(zip(rows, without, found, strict=True))[:: len(rows) // 6]:
            print(f"{row['source']}\n  model: {one}\n  kNN:   {other}\n")
        wrong = [
            (row["term"], text)
            for row, text in zip(rows, found, strict=True)
            if row["term"] not in text
        ]
        print("missed:", wrong[:10])
    print(json.dumps(results))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
