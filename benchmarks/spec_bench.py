"""Compares drafts on Spec-Bench's RAG and summarization prompts: tokens a pass, speed, same text.

    python benchmarks/spec_bench.py MODEL QUESTIONS [--prompts 20] [--new-tokens 64]

QUESTIONS is `data/spec_bench/question.jsonl` of github.com/hemingkx/Spec-Bench (Xia et al. 2024).
The passages of the chosen prompts are the datastore, and λ is 0, so that all ways write the model's
own text. Each prompt is continued in all ways, in random order. Speeds are per second of the
processor, over the whole of `generate()` and over what comes after the prompt's pass:

    plain              the model's own `generate()`
    prompt lookup      `prompt_lookup_num_tokens=10` of transformers (Saxena 2023)
    suffix automaton   what followed the longest suffix that occurs before in the text or in the
                       datastore, four tokens for each that matches and at most 39, which is the
                       rule of SAM Decoding (Hu et al. 2024) without its tree over the datastore
    memory             drafts of this package, from the datastore's neighbors and from the text
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import load, record

import knn_logits
from knn_logits.generation.drafts import DraftedDecoding

CATEGORIES = ("rag", "summarization")


class Clock:
    """Counts a model's passes, and takes the processor's time after the first of a text."""

    def __init__(self, model):
        self._handle = model.register_forward_hook(self._count)

    def _count(self, *_):
        self.passes += 1
        if self.passes == 1:
            self.prompt_read = time.process_time()

    def time(self, generate, **settings):
        """Returns the ids, the passes, and the seconds of the whole and after the prompt."""
        self.passes, started = 0, time.process_time()
        ids = generate(**settings)
        ended = time.process_time()
        return ids, self.passes, ended - started, ended - self.prompt_read


def passages_of(category, prompt):
    """The part of a prompt that is a document's. A RAG prompt's last line is its question."""
    if category == "rag":
        return prompt.strip().rpartition("\n")[0]
    return prompt.removeprefix("Summarize: ")


def longest_match(text, corpus):
    """The length of the longest suffix of a text that occurs in a corpus, and the place after."""
    ends = np.flatnonzero(corpus == text[-1])
    length, after = 0, 0
    while len(ends):
        length, after = length + 1, int(ends[0]) + 1
        ends = ends[ends >= length]
        if length == len(text):
            break
        ends = ends[corpus[ends - length] == text[-1 - length]]
    return length, after


def suffix_automaton(corpus):
    """Drafts by the rule of SAM Decoding. The match is searched for at each step, and not kept."""

    def draft(ids, room):
        text = np.asarray(ids)
        in_text, in_corpus = longest_match(text, text[:-1]), longest_match(text, corpus)
        # The text drafts where both match alike.
        source, (length, after) = max(
            ((text, in_text), (corpus, in_corpus)), key=lambda candidate: candidate[1][0]
        )
        return source[after : after + min(room, 4 * length, 39)].tolist()

    return draft


def ways_of(model, knn, corpus):
    """The ways to continue a prompt, each a function like `generate()`."""

    def by_automaton(**settings):
        loop = DraftedDecoding(suffix_automaton(corpus), lambda accepted: None)
        return model.generate(custom_generate=loop, **settings)

    return {
        "plain": model.generate,
        "prompt lookup": lambda **settings: model.generate(prompt_lookup_num_tokens=10, **settings),
        "suffix automaton": by_automaton,
        "memory": knn.generate,
    }


def compare(ways, clock, tokenizer, prompts, new_tokens):
    """Continues prompts in all ways, and returns a row for each."""
    rows = {way: np.zeros(5) for way in ways}
    for number, prompt in enumerate(prompts):
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        written = {}
        for way in random.Random(number).sample(list(ways), len(ways)):
            ids, *figures = clock.time(
                ways[way],
                **inputs,
                do_sample=False,
                max_new_tokens=new_tokens,
                pad_token_id=tokenizer.eos_token_id,
            )
            written[way] = ids
            rows[way][:4] += ids.shape[1] - inputs["input_ids"].shape[1], *figures
        for way, row in rows.items():
            row[4] += torch.equal(written[way], written["plain"])
        print(number, {way: row.round(1).tolist() for way, row in rows.items()}, flush=True)
    # Every text begins with one token of the prompt's pass.
    speeds = {
        way: (tokens / whole, (tokens - len(prompts)) / after)
        for way, (tokens, _, whole, after, _) in rows.items()
    }
    return {
        way: {
            "tokens_a_pass": round(row[0] / row[1], 2),
            "tokens_a_second": round(speeds[way][0], 1),
            "speed_to_plain": round(speeds[way][0] / speeds["plain"][0], 2),
            "after_the_prompt": round(speeds[way][1] / speeds["plain"][1], 2),
            "same_text": f"{row[4]:.0f} of {len(prompts)}",
        }
        for way, row in rows.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("questions")
    parser.add_argument("--prompts", type=int, default=20, help="of each category")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model, args.dtype)
    questions = [json.loads(line) for line in Path(args.questions).read_text("utf-8").splitlines()]
    numbers = random.Random(args.seed)
    prompts = {
        category: numbers.sample(
            [row["turns"][0] for row in questions if row["category"] == category], args.prompts
        )
        for category in CATEGORIES
    }
    documents = [passages_of(name, prompt) for name, some in prompts.items() for prompt in some]
    with tempfile.TemporaryDirectory() as folder:
        store = knn_logits.build_datastore(model, tokenizer, documents, folder, threads=1)
        result = {"entries": len(store)}
        with knn_logits.KNNLogitsProcessor(model, store, lmbda=0.0, threads=1) as knn:
            ways, clock = ways_of(model, knn, np.asarray(store.tokens)), Clock(model)
            for name, some in prompts.items():
                result[name] = compare(ways, clock, tokenizer, some, args.new_tokens)
    record("spec_bench", vars(args), result)


if __name__ == "__main__":
    main()
