"""Counts the words that `explain` contradicts: replaced ones, which it should, and others.

python benchmarks/contradictions.py MODEL STORE HELD_OUT

Sentences of the datastore are explained with one word replaced at random and as they are, and so
are sentences of a text that the datastore does not hold. Each sentence stands alone. Counted are
the words that differ from a passage which the text otherwise quotes, and those that most of the
vote is against.
"""

import argparse
import random
import re

import torch
from common import load, record

import knn_logits
from knn_logits.evidence.sources import words_of


def sentences(texts):
    """Returns the sentences of 10 to 40 words in texts that are mostly letters, in their order."""
    found = []
    for text in texts:
        for one in re.split(r"(?<=[.])\s+(?=[A-Z])", text):
            one = one.strip()
            letters = sum(sign.isalpha() or sign == " " for sign in one)
            if 10 <= len(one.split()) <= 40 and letters > 0.85 * len(one) and "\n\n" not in one:
                found.append(one)
    return found


def texts_of(store, tokenizer):
    """Returns the texts of a datastore's documents."""
    spans = zip(store.documents.first, store.documents.length, strict=True)
    return [tokenizer.decode(store.tokens[first : first + length]) for first, length in spans]


def objections(model, tokenizer, memory, text):
    """Returns the number of tokens, the words that a passage has otherwise, and those outvoted."""
    tokens = knn_logits.explain(model, tokenizer, memory, text)[0].tokens
    quoted, voted = [], []
    for word in words_of(tokens):
        rival = knn_logits.contradiction(word)
        if rival is not None:
            (quoted if rival.quoted else voted).append("".join(one.token for one in word).strip())
    return len(tokens), quoted, voted


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("held_out")
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    memory = knn_logits.Memory(model, args.store)
    chance = random.Random(args.seed)
    own = sentences(texts_of(memory.stores[0], tokenizer))
    held = sentences(one.text for one in knn_logits.read_corpus([args.held_out]))
    chance.shuffle(own)
    chance.shuffle(held)
    words = [word for one in own for word in one.split() if word.isalpha() and len(word) > 3]
    sets = {"replaced": [], "own": [], "held out": []}
    for one in own[: args.sentences]:
        places = [found.span() for found in re.finditer(r"\S+", one)]
        first, last = places[chance.randrange(2, len(places))]
        new = chance.choice(words)
        sets["replaced"].append((one[:first] + new + one[last:], new))
    sets["own"] = [(one, None) for one in own[args.sentences : 2 * args.sentences]]
    sets["held out"] = [(one, None) for one in held[: 2 * args.sentences]]
    result = {"entries": len(memory.stores[0])}
    for name, texts in sets.items():
        counts = {"sentences": len(texts), "tokens": 0, "found": 0, "others": 0, "by_vote": 0}
        for text, new in texts:
            tokens, quoted, voted = objections(model, tokenizer, memory, text)
            right = [word for word in quoted if new is not None and new in word]
            counts["tokens"] += tokens
            counts["found"] += bool(right)
            counts["others"] += len(quoted) - len(right)
            counts["by_vote"] += len(voted)
        result[name] = counts
        print(name, counts, flush=True)
    record("contradictions", vars(args), result)


if __name__ == "__main__":
    main()
