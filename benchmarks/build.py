"""Compares entries per CPU second of a build with tokens per second of the bare forward pass.

The bare forward pass runs the model without its head over the same windows, and keeps nothing. If
the stride is half the window, each token passes the model twice. Then a build that costs nothing
else would reach a ratio of 0.5. The ratio can be larger, since a build skips the modules after the
key.

    python benchmarks/build.py MODEL CORPUS --entries 100000
"""

import argparse
import tempfile

import torch
from common import add_model_options, clock_of, first_documents, load, record

import knn_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_options(parser)
    parser.add_argument("corpus")
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="build", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = clock_of(args.device)
    model, tokenizer = load(args.model, args.dtype, args.device)
    documents = first_documents(args.corpus, tokenizer, args.entries)
    rounds = []
    for _ in range(args.rounds):
        phases = {}

        def progress(phase, *_, phases=phases):
            phases.setdefault(phase, clock())

        with tempfile.TemporaryDirectory() as folder:
            started = clock()
            store = knn_logits.build_datastore(
                model,
                tokenizer,
                documents,
                folder,
                window=knn_logits.WindowConfig(args.window, args.stride),
                batch_tokens=args.batch_tokens,
                threads=args.threads,
                progress=progress,
            )
            whole = clock() - started
            index_phase = next(at for phase, at in phases.items() if phase.startswith("index"))
            keys = index_phase - phases["keys"]
            bare, window_tokens = bare_forward(model, store, args, clock)
            entries = len(store)
        rounds.append(
            {
                "entries": entries,
                "seconds_build": whole,
                "seconds_keys": keys,
                "seconds_bare": bare,
                "entries_per_second": entries / whole,
                "entries_per_second_keys": entries / keys,
                "bare_window_tokens_per_second": window_tokens / bare,
                "ratio_whole_build": entries / whole / (window_tokens / bare),
                "ratio_keys": entries / keys / (window_tokens / bare),
                "possible": entries / window_tokens,
            }
        )
    rounds.sort(key=lambda one: one["ratio_whole_build"])
    record(args.name, vars(args), {**rounds[len(rounds) // 2], "rounds": len(rounds)})


def bare_forward(model, store, args, clock):
    """Runs the model without its head over the datastore's windows.

    Returns:
        The seconds that it took, and the number of tokens.
    """
    windows = []
    for number in range(len(store.documents)):
        document = store.documents[number]
        ids = store.tokens[document.first : document.first + document.length - 1]
        for start in range(0, max(1, len(ids) - args.window + args.stride), args.stride):
            windows.append(ids[start : start + args.window].astype("int64"))
    windows = sorted((one for one in windows if len(one)), key=len)
    rows = max(1, args.batch_tokens // args.window)
    decoder = model.get_decoder()
    started = clock()
    with torch.inference_mode():
        for first in range(0, len(windows), rows):
            batch = windows[first : first + rows]
            ids = torch.zeros(len(batch), len(batch[-1]), dtype=torch.int64)
            for row, window in enumerate(batch):
                ids[row, : len(window)] = torch.from_numpy(window)
            decoder(input_ids=ids.to(args.device), use_cache=False)
    return clock() - started, sum(map(len, windows))


if __name__ == "__main__":
    main()
