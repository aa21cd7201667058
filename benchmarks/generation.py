"""Measures tokens per CPU second with kNN and without, in turn on the same model.

python benchmarks/generation.py MODEL CORPUS --entries 200000 --k 1024
"""

import argparse
import tempfile

import torch
from common import add_model_options, alternate, clock_of, first_documents, load, record, summary

import knn_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_options(parser)
    parser.add_argument("corpus")
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--index", default="auto")
    parser.add_argument("--nprobe", type=int)
    parser.add_argument("--store", help="an existing datastore, in place of a new one")
    parser.add_argument("--name", default="generation", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model, args.dtype, args.device)
    with tempfile.TemporaryDirectory() as folder:
        if args.store:
            store = knn_logits.Datastore(args.store)
        else:
            documents = first_documents(args.corpus, tokenizer, args.entries)
            index = knn_logits.IndexConfig(args.index)
            store = knn_logits.build_datastore(model, tokenizer, documents, folder, index=index)
        text = "\n".join(document.text for document in first_documents(args.corpus, tokenizer, 1))
        ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0]
        ids = ids[: args.batch * args.prompt_tokens].view(args.batch, -1).to(args.device)
        settings = {
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": args.new_tokens,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        with knn_logits.KNNLogitsProcessor(
            model, store, k=args.k, nprobe=args.nprobe, threads=args.threads
        ) as knn:
            without, with_knn = alternate(
                lambda: model.generate(ids, **settings),
                lambda: model.generate(ids, logits_processor=[knn], **settings),
                args.rounds,
                clock_of(args.device),
            )
        tokens = args.batch * args.new_tokens
        result = {
            "entries": len(store),
            "index": store.manifest.index.model_dump(mode="json"),
            "seconds_without": summary(without),
            "seconds_with": summary(with_knn),
            "tokens_per_second_without": tokens / summary(without)["median"],
            "tokens_per_second_with": tokens / summary(with_knn)["median"],
            "ratio": summary(without)["median"] / summary(with_knn)["median"],
            "ratio_of_fastest": summary(without)["fastest"] / summary(with_knn)["fastest"],
        }
    record(args.name, vars(args), result)


if __name__ == "__main__":
    main()
