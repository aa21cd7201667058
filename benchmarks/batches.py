"""Several texts in one batch, beside one after another with drafts.

python benchmarks/batches.py MODEL STORE TEXT

A batch shares each forward pass, but is not drafted. So it takes longer than drafted texts one
after another until it has enough rows. `knn-logits serve` chooses by these numbers. Without a
datastore there are no drafts. Prompts are beginnings of the documents of a text that the datastore
does not hold.
"""

import argparse

import torch
from common import alternate, first_documents, load, record, summary

import knn_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 5, 6, 8, 16])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
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
    with knn_logits.KNNLogitsProcessor(model, args.store, threads=1) as knn:
        for size in args.sizes:
            prompts = [
                tokenizer.decode(
                    tokenizer(one.text, verbose=False)["input_ids"][: args.prompt_tokens]
                )
                for one in (documents * size)[:size]
            ]

            def write(generate, batches):
                for batch in batches:
                    inputs = tokenizer(batch, return_tensors="pt", padding=True)
                    generate(**inputs, **settings)

            for name, generate in (("with kNN", knn.generate), ("model alone", model.generate)):
                singles = [[one] for one in prompts]
                batch, alone = alternate(
                    lambda prompts=prompts, generate=generate: write(generate, [prompts]),
                    lambda singles=singles, generate=generate: write(generate, singles),
                    args.rounds,
                )
                result[f"{name}, {size} texts"] = {
                    "batch": summary(batch),
                    "one after another": summary(alone),
                    "one after another / batch": summary(alone)["median"]
                    / summary(batch)["median"],
                }
    record("batches", vars(args), result)


if __name__ == "__main__":
    main()
