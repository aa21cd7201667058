"""Several texts in one batch or in shared passes, beside one after another with drafts.

python benchmarks/batches.py MODEL STORE TEXT

Drafted texts share passes, each in a thread of its own (`SharedPasses`). A batch of `generate()`
shares each pass too, but is not drafted. Prompts are beginnings of the documents of a text.
Processor seconds say more than those of the clock where the machine is busy: all ways have one
thread at a time. `--model-alone` compares both without a datastore as well.
"""

import argparse
import json
import random
import statistics
import threading
import time
from functools import partial

import torch
from common import first_documents, load, record

import knn_logits


def seconds_of(ways, rounds):
    """Takes several ways in random order, after one round that does not count.

    Returns:
        By the name of each way, the medians of its seconds by the clock and of the processor, and
        what it returned.
    """
    taken, returned = {name: [] for name in ways}, {}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(ways), len(ways)):
            clock, processor = time.perf_counter(), time.process_time()
            returned[name] = ways[name]()
            spent = time.perf_counter() - clock, time.process_time() - processor
            if number:
                taken[name].append(spent)
    return {
        name: {
            "median": statistics.median(clock for clock, _ in spent),
            "processor_seconds": statistics.median(processor for _, processor in spent),
            "rounds": rounds,
        }
        for name, spent in taken.items()
    }, returned


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model-alone", action="store_true")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the memory, as JSON")
    parser.add_argument("--name", default="batches", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    documents = first_documents(args.text, tokenizer, 10**9)
    settings = {
        "max_new_tokens": args.tokens,
        "do_sample": False,
        "pad_token_id": tokenizer.pad_token_id,
    }
    result = {}
    with knn_logits.KNNLogitsProcessor(model, args.store, threads=1, **args.settings) as knn:
        for size in args.sizes:
            prompts = [
                tokenizer.decode(
                    tokenizer(one.text, verbose=False)["input_ids"][: args.prompt_tokens]
                )
                for one in (documents * size)[:size]
            ]

            def write(generate, batch, **more):
                inputs = tokenizer(batch, return_tensors="pt", padding=True)
                output = generate(**inputs, **settings, **more)
                return output[:, inputs["input_ids"].shape[1] :].tolist()

            def in_turn(generate, prompts=prompts):
                return [write(generate, [one])[0] for one in prompts]

            def in_a_batch(generate, prompts=prompts):
                return write(generate, prompts)

            def shared(*, drafted, prompts=prompts):
                texts, passes = {}, knn_logits.SharedPasses(model)
                generate = partial(knn.generate, passes=passes) if drafted else passes.generate

                def run(number):
                    texts[number] = write(generate, [prompts[number]])[0]

                threads = [threading.Thread(target=run, args=(n,)) for n in range(len(prompts))]
                for one in threads:
                    one.start()
                for one in threads:
                    one.join()
                return [texts[number] for number in range(len(prompts))]

            ways = {
                "one after another, drafted": lambda: in_turn(knn.generate),
                "shared passes, drafted": lambda: shared(drafted=True),
                "batch": lambda: in_a_batch(knn.generate),
            }
            if args.model_alone:
                ways["model alone, one after another"] = lambda: in_turn(model.generate)
                ways["model alone, shared passes"] = lambda: shared(drafted=False)
                ways["model alone, batch"] = lambda: in_a_batch(model.generate)
            taken, texts = seconds_of(ways, args.rounds)
            alone, others = (
                texts[f"{way}, drafted"] for way in ("one after another", "shared passes")
            )
            tokens = sum(token != tokenizer.pad_token_id for text in alone for token in text)
            base = taken["one after another, drafted"]["processor_seconds"]
            result[f"{size} texts"] = taken | {
                "tokens": tokens,
                "identical": f"{sum(map(list.__eq__, alone, others))} of {size}",
                "speed of shared passes": base
                / taken["shared passes, drafted"]["processor_seconds"],
                "speed of the batch": base / taken["batch"]["processor_seconds"],
            }
            if args.model_alone:
                alone = taken["model alone, one after another"]["processor_seconds"]
                for way, name in (("shared passes", "shared passes"), ("batch", "the batch")):
                    result[f"{size} texts"][f"model alone, speed of {name}"] = (
                        alone / taken[f"model alone, {way}"]["processor_seconds"]
                    )
    record(args.name, vars(args), result)


if __name__ == "__main__":
    main()
