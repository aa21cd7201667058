"""Compares the shares of documents with what happens when documents are left out.

Texts are written from held-out prompts with the datastore's settings for writing, and explained
under the same k, λ and temperature. For each token with at least 0.2 from the memory it measures:

- exclude: whether `exclude` gives the token the same probability as a datastore from which its
  first document was removed;
- rank correlation (the linear datamodeling score of Park et al. 2023, "TRAK"): over random halves
  of the documents, the correlation between the token's log p and the sum of the scores of the
  documents that were kept;
- first document: how often another token is the likeliest without it, how often without a document
  that has no share, and how often the token stays when only the first document is kept.

It also plants facts, and measures how often an edited fact changes the token that is written.

The shares are compared with other scores: BM25 of the text before the token, the similarity of a
document's mean key, the longest text before the token that a document contains verbatim, and
chance.

    python benchmarks/evidence.py MODEL STORE HELD_OUT [--prompts 6] [--halves 64]
"""

import argparse
import math
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from common import load, record

import knn_logits

PROMPT, NEW, CONTEXT, LEAST = 48, 48, 64, 0.2


def texts_of(model, tokenizer, memory, held_out, number, seed):
    """Writes texts with the memory, from random places of documents.

    Returns:
        The texts, and for each of them the number of its first token that is measured.
    """
    numbers = np.random.default_rng(seed)
    documents = [
        tokenizer(one.text, verbose=False)["input_ids"]
        for one in knn_logits.read_corpus([held_out])
    ]
    documents = [ids for ids in documents if len(ids) > 2 * PROMPT]
    found = {}
    with knn_logits.KNNLogitsProcessor(model, memory, record=False) as knn:
        for place in numbers.integers(0, len(documents), number):
            start = int(numbers.integers(0, len(documents[place]) - PROMPT))
            ids = torch.tensor([documents[place][start : start + PROMPT]])
            output = knn.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW,
                do_sample=False,
                pad_token_id=tokenizer.eos_token_id,
            )
            found[tokenizer.decode(output[0])] = PROMPT + 1
    return found


class Scores:
    """Scores each document for a token, by several methods."""

    def __init__(self, tokenizer, store):
        self.tokenizer, self.store = tokenizer, store
        documents = store.documents
        self.ids = [documents[one].id for one in range(len(documents))]
        self.tokens = [
            np.asarray(store.tokens[one.first : one.first + one.length])
            for one in (documents[number] for number in range(len(documents)))
        ]
        self.counts = [Counter(one.tolist()) for one in self.tokens]
        self.mean_length = float(np.mean([len(one) for one in self.tokens]))
        self.frequency = Counter(token for one in self.counts for token in one)
        means = []
        for number in range(len(self.tokens)):
            entries = store.entries_of([self.ids[number]])
            means.append(store.keys(entries[:: max(1, len(entries) // 256)]).astype("f4").mean(0))
        self.means = torch.nn.functional.normalize(torch.tensor(np.array(means)), dim=-1)
        self.random = np.random.default_rng(0)

    def bm25(self, context, _):
        """Computes Okapi BM25 with the usual constants, for the tokens before the token."""
        number, found = len(self.tokens), np.zeros(len(self.tokens))
        for token in set(context):
            seen = self.frequency.get(token, 0)
            weight = math.log(1 + (number - seen + 0.5) / (seen + 0.5))
            for place, counts in enumerate(self.counts):
                count = counts.get(token, 0)
                scale = 0.25 + 0.75 * len(self.tokens[place]) / self.mean_length
                found[place] += weight * count * 2.5 / (count + 1.5 * scale)
        return found

    def similarity(self, _, state):
        """Computes the cosine of the mean of a document's keys and the state before the token."""
        return (self.means @ torch.nn.functional.normalize(state, dim=-1)).numpy()

    def verbatim(self, context, _):
        """Counts the tokens of the longest suffix of the context that a document contains."""
        found = np.zeros(len(self.tokens))
        for place, tokens in enumerate(self.tokens):
            ends = np.flatnonzero(tokens == context[-1])
            length = 1
            while len(ends):
                found[place] = length
                if length >= len(context):
                    break
                ends = ends[ends >= length]
                ends = ends[tokens[ends - length] == context[-1 - length]]
                length += 1
        return found

    def chance(self, _, __):
        """Returns random numbers."""
        return self.random.random(len(self.tokens))


def ranks(values):
    """Returns ranks from 0. Equal values have the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    found[order] = np.arange(len(values))
    for value in np.unique(values):
        same = values == value
        found[same] = found[same].mean()
    return found


def correlation(one, other):
    """Computes Spearman's rank correlation. It is 0 if one of the two is constant."""
    one, other = ranks(np.asarray(one)), ranks(np.asarray(other))
    if one.std() == 0 or other.std() == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def states_of(model, tokenizer, memory, text):
    """Returns the tokens of a text, and the state at the key's place for each of them."""
    from knn_logits.engine.forward import key_states_and_logits

    ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
    with torch.no_grad():
        states, _ = key_states_and_logits(
            model, memory.location, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        )
    return ids[0].tolist(), states[0].float()


def measure(model, tokenizer, folder, held_out, options):
    """Measures all figures except those of planted facts."""
    store = knn_logits.Datastore(folder)
    memory = knn_logits.Memory(model, store)
    own = memory.config
    weight = own.lmbda if memory.gate is None else memory.gate
    asked = {"k": own.k, "lmbda": weight, "temperature": own.temperature}
    texts = texts_of(model, tokenizer, memory, held_out, options.prompts, options.seed)
    scores = Scores(tokenizer, store)
    number = {id: place for place, id in enumerate(scores.ids)}

    def explained(text, exclude=(), datastore=memory):
        return knn_logits.explain(
            model, tokenizer, datastore, text, exclude=exclude, max_neighbors=1, candidates=1,
            **asked,
        )[0].tokens[texts[text] - 1 :]  # fmt: skip

    words, before = [], {}
    for text in texts:
        started = time.perf_counter()
        before[text] = explained(text)
        words += [
            (text, place)
            for place, token in enumerate(before[text])
            if token.influence >= LEAST and token.documents
        ]
        before[text, "seconds"] = time.perf_counter() - started
    methods = {name: getattr(scores, name) for name in ("bm25", "similarity", "verbatim", "chance")}
    given = {"shares": [], **{name: [] for name in methods}}
    for text in texts:
        ids, states = states_of(model, tokenizer, memory, text)
        for place in (place for one, place in words if one == text):
            shares = np.zeros(len(scores.ids))
            for one in before[text][place].documents:
                shares[number[one.document]] = one.share
            given["shares"].append(shares)
            at = texts[text] + place
            for name, method in methods.items():
                given[name].append(method(ids[max(0, at - CONTEXT) : at], states[at - 1]))
    # Random halves of the documents.
    numbers = np.random.default_rng(options.seed + 1)
    kept, happened = [], []
    for _ in range(options.halves):
        half = numbers.permutation(len(scores.ids))[: len(scores.ids) // 2]
        kept.append(np.isin(np.arange(len(scores.ids)), half))
        out = [id for id, inside in zip(scores.ids, kept[-1], strict=True) if not inside]
        after = {text: explained(text, out) for text in texts}
        happened.append([math.log(max(after[text][place].p, 1e-12)) for text, place in words])
        print(f"halves: {len(kept)} of {options.halves}", end="\r", flush=True)
    happened = np.array(happened)
    table = {
        name: round(
            float(
                np.mean(
                    [
                        correlation([one[row] @ inside for inside in kept], happened[:, row])
                        for row in range(len(words))
                    ]
                )
            ),
            3,
        )
        for name, one in given.items()
    }
    # Tokens are explained without the first document, without another, and with the first alone.
    changed, others, stays, total = Counter(), 0, 0, Counter()
    gaps = []
    first = {name: [int(one.argmax()) for one in rows] for name, rows in given.items()}
    cache = {}

    def without(text, out):
        key = text, tuple(out)
        if key not in cache:
            cache[key] = explained(text, out)
        return cache[key]

    def likeliest(token):
        return token.candidates[0].token_id == token.token_id

    for row, (text, place) in enumerate(words):
        if not likeliest(before[text][place]):
            continue
        for name in first:
            total[name] += 1
            out = [scores.ids[first[name][row]]]
            changed[name] += not likeliest(without(text, out)[place])
        unnamed = [one for one in range(len(scores.ids)) if given["shares"][row][one] == 0]
        if unnamed:
            total["unnamed"] += 1
            out = [scores.ids[int(numbers.choice(unnamed))]]
            others += not likeliest(without(text, out)[place])
        alone = [id for id in scores.ids if id != scores.ids[first["shares"][row]]]
        stays += likeliest(without(text, alone)[place])
    # `exclude` is compared with a real removal of the documents that come first most often.
    for id in [scores.ids[one] for one, _ in Counter(first["shares"]).most_common(2)]:
        with tempfile.TemporaryDirectory() as room:
            copy = Path(shutil.copytree(folder, Path(room) / "copy"))
            less = knn_logits.Memory(model, knn_logits.remove_documents(copy, [id]), check=False)
            for text in texts:
                gone = explained(text, (), less)
                pairs = zip(without(text, [id]), gone, strict=True)
                gaps += [abs(one.p - other.p) for one, other in pairs]
    seconds = sum(before[text, "seconds"] for text in texts)
    return {
        "documents": len(scores.ids),
        "words": len(words),
        "exclude_against_remove_largest_difference": max(gaps),
        "rank_correlation": table,
        "word_changes_without_first_document": {
            name: round(changed[name] / max(1, total[name]), 3) for name in first
        },
        "word_changes_without_a_document_not_named": round(others / max(1, total["unnamed"]), 3),
        "word_stays_with_first_document_alone": round(stays / max(1, total["shares"]), 3),
        "milliseconds_a_token": round(
            1000 * seconds / sum(len(tokenizer(text)["input_ids"]) for text in texts), 2
        ),
    }


def planted(model, tokenizer, held_out, number, seed):
    """Counts how often a planted fact is written, and how often its edited form after the edit."""
    numbers = np.random.default_rng(seed)
    filler = [one.text[:3000] for one in knn_logits.read_corpus([held_out])][:8]
    names = ["Merrow", "Tallis", "Oskar", "Brenna", "Quill", "Harbin", "Selwyn", "Dorset"]
    things = ["station", "harbour", "library", "foundry", "tower"]
    facts = [f"The entrance code of the {name} {thing} is" for name in names for thing in things]
    facts = [facts[one] for one in numbers.permutation(len(facts))[:number]]
    codes = [[f" {one}" for one in numbers.integers(100, 999, 2)] for _ in facts]
    found = []
    with tempfile.TemporaryDirectory() as room:
        for version in (0, 1):
            texts = filler + [
                f"{fact}{code[version]}." for fact, code in zip(facts, codes, strict=True)
            ]
            store = knn_logits.build_datastore(
                model, tokenizer, texts, Path(room) / str(version), index=None
            )
            said = []
            with knn_logits.KNNLogitsProcessor(model, store) as knn:
                for fact in facts:
                    inputs = tokenizer(fact, return_tensors="pt")
                    output = knn.generate(**inputs, max_new_tokens=6, do_sample=False,
                                          pad_token_id=tokenizer.eos_token_id)  # fmt: skip
                    said.append(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]))
            found.append([text.startswith(code[version].rstrip()) for text, code in
                          zip(said, codes, strict=True)])  # fmt: skip
    return {"facts": len(facts), "written": sum(found[0]), "written_after_the_edit": sum(found[1])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("held_out")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--halves", type=int, default=64)
    parser.add_argument("--facts", type=int, default=20)
    parser.add_argument("--name", default="evidence", help="of the file of results")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(options.model)
    result = measure(model, tokenizer, options.store, options.held_out, options)
    if options.facts:
        facts = planted(model, tokenizer, options.held_out, options.facts, options.seed)
        result["planted"] = facts
    record(options.name, vars(options), result)


if __name__ == "__main__":
    main()
