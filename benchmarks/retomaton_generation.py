"""Measures tokens per second of `generate()` for the model alone, kNN-LM and RetoMaton.

python benchmarks/retomaton_generation.py MODEL STORE TEXT --without STORE_WITHOUT_CLUSTERS

RetoMaton is measured with pointers only, and with clusters. The modes are greedy search, sampling,
four beams, a batch of eight prompts of different lengths, and streaming. All ways take turns, and
each round has new prompts, which are the same for all ways. A ratio is the median of the rounds'
ratios. With `--cpu` the CPU time of the process is measured, which a busy machine disturbs less.
"""

import argparse
import statistics
import time

import torch
from common import load, record
from transformers import TextIteratorStreamer

import knn_logits

WAYS = ("model", "kNN-LM", "RetoMaton, pointers", "RetoMaton, clusters")
MODES = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 50},
    "beams": {"num_beams": 4},
    "batch": {"prompts": 8},
    "streaming": {"streamed": True},
}


def prompts_of(text, tokenizer, tokens):
    """Yields pieces of held-out text without end, each of `tokens / 2` to `tokens` tokens."""
    lengths = [tokens - number * tokens // 16 for number in range(8)]
    while True:
        for document in knn_logits.read_corpus([text]):
            ids = tokenizer(document.text, verbose=False)["input_ids"]
            for number in range(len(ids) // (4 * tokens)):
                first = 4 * tokens * number
                yield ids[first : first + lengths[number % 8]]


def timed(model, tokenizer, inputs, processors, args, *, streamed=False, **settings):
    """Returns the seconds of one generation, and its output."""
    settings = {
        "max_new_tokens": args.new_tokens,
        "min_new_tokens": args.new_tokens,
        "do_sample": False,
        "pad_token_id": tokenizer.pad_token_id,
        "return_dict_in_generate": True,
        **settings,
    }
    if streamed:
        settings["streamer"] = TextIteratorStreamer(tokenizer, timeout=60)
    clock = time.process_time if args.cpu else time.perf_counter
    torch.manual_seed(0)
    started = clock()
    output = model.generate(**inputs, logits_processor=processors, **settings)
    if streamed:
        assert "".join(settings["streamer"])
    return clock() - started, output


def followed(knn, output, tokenizer):
    """Returns the share of tokens whose neighbors came from pointers, without a search."""
    ways = [token.retrieval for one in knn.trace(output, tokenizer) for token in one.tokens]
    return ways.count("pointers") / len(ways)


def measure(mode, model, tokenizer, stores, prompts, args):
    """Measures all ways in turn, in one mode."""
    settings = dict(MODES[mode])
    number = settings.pop("prompts", 1)
    seconds = {name: [] for name in stores}
    saved = {name: [] for name in stores}
    for turn in range(args.rounds + 1):
        rows = {"input_ids": [next(prompts) for _ in range(number)]}
        inputs = tokenizer.pad(rows, padding=True, padding_side="left", return_tensors="pt")
        for name, store in stores.items():
            more = {"k": args.k, "nprobe": args.nprobe, "threads": 1, "check": False}
            if store is None:
                took, _ = timed(model, tokenizer, inputs, None, args, **settings)
            else:
                # Only one processor is open at a time, since its hooks slow the others a little.
                follows = name.startswith("RetoMaton")
                with knn_logits.KNNLogitsProcessor(model, store, retomaton=follows, **more) as knn:
                    took, output = timed(model, tokenizer, inputs, [knn], args, **settings)
                    saved[name].append(followed(knn, output, tokenizer))
            if turn:
                seconds[name].append(took)
    tokens = number * args.new_tokens
    plain, result = seconds["kNN-LM"], {}
    for name, own in seconds.items():
        result[name] = {
            "tokens_per_second": round(tokens / statistics.median(own), 1),
            "fastest": round(tokens / min(own), 1),
            "ratio_to_model": _ratio(seconds["model"], own),
            "ratio_to_knn": _ratio(plain, own),
        }
        if saved[name]:
            result[name]["searches_saved"] = round(statistics.mean(saved[name]), 3)
    return result


def _ratio(others, own):
    return round(statistics.median(a / b for a, b in zip(others, own, strict=True)), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store", help="a datastore with clusters")
    parser.add_argument("text", help="held-out text, in the form of a corpus")
    parser.add_argument("--without", help="the same store without clusters")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--k", type=int)
    parser.add_argument("--nprobe", type=int)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--cpu", action="store_true", help="measure CPU time")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    clustered = knn_logits.Datastore(args.store)
    without = knn_logits.Datastore(args.without) if args.without else None
    stores = dict(zip(WAYS, (None, clustered, without, clustered), strict=True))
    if without is None:
        del stores["RetoMaton, pointers"]
    prompts = prompts_of(args.text, tokenizer, args.prompt_tokens)
    rows = {mode: measure(mode, model, tokenizer, stores, prompts, args) for mode in args.modes}
    record("retomaton_generation", vars(args), rows)


if __name__ == "__main__":
    main()
