"""Compares writing with drafts, without drafts, with prompt lookup, and by the model alone.

    python benchmarks/drafting.py MODEL STORE CORPUS [--prompts 100] [--new-tokens 96]

It measures tokens per forward pass and per second. Prompts are 48 tokens from random places of a
corpus. Each prompt is continued in all ways, in random order, so that a slow moment of the machine
affects all ways alike. The settings are the datastore's for writing, and `--lmbda`, `--k` and
`--temperature` change them. With `--same` only texts with and without drafts are written, to count
how many are the same.
"""

import argparse
import random

import torch
from common import add_model_options, clock_of, load, record

import knn_logits

PROMPT = 48


def prompts_of(corpus, tokenizer, number, seed):
    """Takes prompts from random places of a corpus, or random tokens if there is no corpus."""
    numbers = random.Random(seed)
    if corpus is None:
        return [
            torch.tensor([[numbers.randrange(len(tokenizer)) for _ in range(PROMPT)]])
            for _ in range(number)
        ]
    texts = [
        tokenizer(one.text, verbose=False)["input_ids"] for one in knn_logits.read_corpus([corpus])
    ]
    texts = [ids for ids in texts if len(ids) > 2 * PROMPT]
    found = []
    for ids in numbers.choices(texts, weights=[len(one) for one in texts], k=number):
        start = numbers.randrange(len(ids) - PROMPT)
        found.append(torch.tensor([ids[start : start + PROMPT]]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("store")
    parser.add_argument(
        "corpus", nargs="?", help="the corpus of the prompts (default: random tokens)"
    )
    parser.add_argument("--same", action="store_true")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--lmbda", type=float)
    parser.add_argument("--k", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="drafting", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model, args.dtype, args.device)
    clock = clock_of(args.device)
    prompts = prompts_of(args.corpus, tokenizer, args.prompts, args.seed)
    prompts = [ids.to(args.device) for ids in prompts]
    settings = {
        "max_new_tokens": args.new_tokens,
        "do_sample": args.sample,
        "pad_token_id": tokenizer.eos_token_id,
    }
    seconds, tokens, equal, passes = {}, {}, 0, 0
    own = {"k": args.k, "lmbda": args.lmbda, "temperature": args.temperature}
    with knn_logits.KNNLogitsProcessor(model, knn_logits.Datastore(args.store), **own) as knn:
        ways = {
            "model": model.generate,
            "knn": lambda **given: knn.generate(draft=False, **given),
            "knn, drafts": knn.generate,
            "knn, prompt lookup": lambda **given: knn.generate(
                draft=False, prompt_lookup_num_tokens=8, **given
            ),
        }
        if args.same:
            ways = {way: ways[way] for way in ("knn", "knn, drafts")}
        for number, ids in enumerate(prompts):
            written = {}
            for way in random.Random(number).sample(list(ways), len(ways)):
                torch.manual_seed(number)
                started = clock()
                written[way] = ways[way](
                    input_ids=ids, attention_mask=torch.ones_like(ids), **settings
                )
                seconds[way] = seconds.get(way, 0.0) + clock() - started
                tokens[way] = tokens.get(way, 0) + written[way].shape[1] - ids.shape[1]
                if way == "knn, drafts":
                    passes += knn.passes + 1
            equal += torch.equal(written["knn"], written["knn, drafts"])
    speeds = {way: tokens[way] / seconds[way] for way in ways}
    result = {
        "identical": f"{equal} of {len(prompts)}",
        "tokens_a_pass": round(tokens["knn, drafts"] / passes, 2),
    }
    if not args.same:
        result["tokens_a_second"] = {way: round(speed, 1) for way, speed in speeds.items()}
        result["to_the_model_alone"] = {
            way: round(speed / speeds["model"], 2) for way, speed in speeds.items()
        }
    record(args.name, vars(args), result)


if __name__ == "__main__":
    main()
