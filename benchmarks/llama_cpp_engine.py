"""Compares llama.cpp with transformers on one set of weights: speed, neighbors, perplexity.

    python benchmarks/llama_cpp_engine.py FOLDER FILE.gguf CORPUS HELD_OUT [--documents 30]

FOLDER has the weights for transformers, FILE.gguf for llama.cpp. transformers builds a datastore of
the first documents of CORPUS, unless --store names one, and both engines ask it. Prompts are taken
from these documents. Neighbors, perplexity and log p are of the beginnings of HELD_OUT's first
documents. Everything runs in one thread, and speed is by seconds of processor time, in rounds of
random order, since other programs may run. Both engines build a datastore of the first document for
the speed of a build. `chat` is started and left, for the time to its first prompt.

llama.cpp alone is measured with its own choice for attention, which on a processor is slow for
several tokens at a time, and with ours. Ratios are to the faster of both.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import record
from transformers import AutoModelForCausalLM, AutoTokenizer

import knn_logits
from knn_logits.engine.forward import key_states_and_logits, use_fastest_dtype
from knn_logits.engine.llama_cpp.context import Context, llama
from knn_logits.engine.location import find_key

K, PROMPT = 64, 48
ALONE = "llama.cpp alone, as it comes", "llama.cpp alone, our attention"


def prompts_in(documents, tokenizer, number):
    """Takes prompts of 48 tokens from random places of documents."""
    numbers = random.Random(0)
    texts = [tokenizer(one.text, verbose=False)["input_ids"] for one in documents]
    starts = [
        (ids, numbers.randrange(len(ids) - PROMPT))
        for ids in numbers.choices(texts, weights=[len(ids) for ids in texts], k=number)
    ]
    return [torch.tensor([ids[start : start + PROMPT]]) for ids, start in starts]


# PyTorch's products in bfloat16 reset the AMX registers of their thread, which llama.cpp sets once.
_APART = ThreadPoolExecutor(1)


def run(name, what, *given):
    """Calls a function, for llama.cpp in a thread of its own."""
    return _APART.submit(what, *given).result() if "llama.cpp" in name else what(*given)


def spent(name, what, *given):
    """Returns a result and the seconds of processor time that it took."""
    started = time.process_time()
    result = run(name, what, *given)
    return result, time.process_time() - started


def llama_alone(engine, new_tokens, attention):
    """Greedy search with llama.cpp's decode and an argmax, without transformers and callback."""
    functions, make = llama(), llama().llama_init_from_model

    def with_attention(weights, settings):
        if attention is not None:
            settings.flash_attn_type = attention
        return make(weights, settings)

    functions.llama_init_from_model = with_attention
    context = Context(engine._weights, 1024, ())
    functions.llama_init_from_model = make

    def write(input_ids):
        context.clear()
        ids = input_ids[0].tolist()
        scores, _ = context.read(ids, 1)
        written = []
        while len(written) < new_tokens:
            written.append(int(scores[0].argmax()))
            if len(written) < new_tokens:
                scores, _ = context.read(written[-1:], 1)
        return torch.tensor([[*ids, *written]])

    return write


def speeds(models, store, prompts, new_tokens):
    """Returns tokens a second of each way to write, and what is said of drafts."""
    # Each way writes as many tokens, since none of them ends a text.
    settings = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None}
    automatic = llama().LLAMA_FLASH_ATTN_TYPE_AUTO
    ways = {
        name: run("llama.cpp", llama_alone, models["llama.cpp"], new_tokens, attention)
        for name, attention in zip(ALONE, (automatic, None), strict=True)
    }
    opened = []
    for name, model in models.items():
        knn = run(name, knn_logits.KNNLogitsProcessor, model, store)
        knn.loop_size = None
        opened.append(knn)

        def without(input_ids, model=model):
            mask = torch.ones_like(input_ids)
            return model.generate(input_ids, attention_mask=mask, **settings)

        def with_knn(input_ids, knn=knn, draft=False):
            mask = torch.ones_like(input_ids)
            return knn.generate(input_ids, attention_mask=mask, draft=draft, **settings)

        ways[f"{name}, generate()"] = without
        ways[f"{name}, kNN"] = with_knn
        ways[f"{name}, kNN, drafts"] = lambda ids, ask=with_knn: ask(ids, draft=True)
    seconds, tokens, written = {way: [] for way in ways}, dict.fromkeys(ways, 0), {}
    for name, way in ways.items():
        run(name, way, prompts[0])
    for number, ids in enumerate(prompts):
        for way in random.Random(number).sample(list(ways), len(ways)):
            output, used = spent(way, ways[way], ids)
            seconds[way].append(used)
            tokens[way] += output.shape[1] - ids.shape[1]
            written[way, number] = output[0].tolist()
    for knn in opened:
        knn.close()
    same = {
        name: sum(
            written[f"{name}, kNN", number] == written[f"{name}, kNN, drafts", number]
            for number in range(len(prompts))
        )
        for name in models
    }
    return {way: round(tokens[way] / sum(seconds[way]), 1) for way in ways}, same


def neighbors_of(model, store, texts):
    """Returns the nearest entries at each position of some texts, int64 [positions, K]."""
    memory = knn_logits.Memory(model, store, k=K)
    found = []
    for ids in texts:
        states, _ = key_states_and_logits(model, memory.location, {"input_ids": ids})
        # The first token's state is nearly the same whatever it is.
        queries = states[0, 1:].float().unsqueeze(1)
        found.append(memory.neighbors(queries, ids[0, 1:].unsqueeze(1)).ids)
    return torch.cat(found)


def log_p(model, texts):
    """The model's log p of each token after the first, float32 [tokens], and its likeliest one."""
    parts = []
    for ids in texts:
        with torch.inference_mode():
            logits = model(ids, use_cache=False).logits[0, :-1].float()
        chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        parts.append((chosen, logits.argmax(-1)))
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]


def rederived(engine, store, ids):
    """The largest difference in log p of the mixture, and of one made of files and logits."""
    states, logits = key_states_and_logits(engine, find_key(engine), {"input_ids": ids})
    keys = torch.from_numpy(store.keys(np.arange(len(store)))).double()
    distances = (keys - states[0, -1].double()).square().sum(1)
    near, at = distances.topk(K, largest=False)
    votes = torch.zeros(logits.shape[-1], dtype=torch.float64)
    votes.index_add_(0, store.values[at].long(), (-near / 10).softmax(0))
    expected = (0.25 * votes + 0.75 * logits[0, -1].double().softmax(0)).log()
    given = {"k": K, "lmbda": 0.25, "temperature": 10.0, "suffix_weight": 1.0, "retomaton": False}
    with knn_logits.KNNLogitsProcessor(engine, store, **given) as knn:
        output = engine.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[knn],
            max_new_tokens=1,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
    return float((output.scores[0][0] - expected).abs().max())


def start_of_chat(model, folder, rounds):
    """The median seconds of a start of `chat`: on the clock, and of processor time."""
    clock, processor = [], []
    for _ in range(rounds):
        times = subprocess.run(
            [sys.executable, "-c", _START, str(model), str(folder)],
            input="/quit\n",
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()[-2:]
        clock.append(float(times[0]))
        processor.append(float(times[1]))
    return {
        "seconds": round(statistics.median(clock), 2),
        "of_processor_time": round(statistics.median(processor), 2),
    }


_START = """
import sys, time
began = time.perf_counter()
from knn_logits.cli import main
sys.argv = ["knn-logits", "chat", *sys.argv[1:], "--threads", "1"]
try:
    main()
except SystemExit:
    pass
print(time.perf_counter() - began, time.process_time())
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("file")
    parser.add_argument("corpus")
    parser.add_argument("held_out")
    parser.add_argument("--documents", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--held", type=int, default=4, help="documents of HELD_OUT")
    parser.add_argument("--held-tokens", type=int, default=256, help="tokens of each of them")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--store", help="a datastore that transformers built of these documents")
    parser.add_argument("--name", default="gguf", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype="auto").eval()
    use_fastest_dtype(model)
    engine = run("llama.cpp", knn_logits.GGUFModel, args.file)
    models = {"transformers": model, "llama.cpp": engine}
    documents = list(knn_logits.read_corpus([args.corpus]))[: args.documents]
    held = list(knn_logits.read_corpus([args.held_out]))[: args.held]
    with tempfile.TemporaryDirectory() as scratch:
        given, small = {"k": K, "lmbda": 0.25, "temperature": 10.0}, {}
        for name, one in models.items():
            build = partial(knn_logits.build_datastore, one, tokenizer, documents[:1], **given)
            searched, seconds = spent(name, build, Path(scratch) / name)
            small[name] = round(len(searched) / seconds, 1)
        if args.store:
            store = knn_logits.Datastore.from_pretrained(args.store)
        else:
            folder = Path(scratch) / "store"
            store = knn_logits.build_datastore(model, tokenizer, documents, folder)
        prompts = prompts_in(documents, tokenizer, args.prompts)
        starts = {
            name: start_of_chat(path, store.folder, args.starts)
            for name, path in (("transformers", args.folder), ("llama.cpp", args.file))
        }
        texts = [
            torch.tensor([tokenizer(one.text, verbose=False)["input_ids"][: args.held_tokens]])
            for one in held
        ]
        near = [run(name, neighbors_of, one, store, texts) for name, one in models.items()]
        shared = (near[0].unsqueeze(2) == near[1].unsqueeze(1)).any(2).float().mean(1)
        perplexity = {}
        for name, one in models.items():
            beginnings = [tokenizer.decode(ids[0]) for ids in texts]
            scored = run(name, knn_logits.evaluate, one, tokenizer, store, beginnings)
            measured = scored.total.perplexity
            perplexity[name] = {
                "model": round(measured.lm, 4),
                "with_knn": round(measured.interpolated, 4),
            }
        (p, likeliest), (q, other) = (run(name, log_p, one, texts) for name, one in models.items())
        tokens, same = speeds(models, store, prompts[: args.prompts], args.new_tokens)
        # The last of the small datastores is llama.cpp's own, which is searched exactly.
        difference = max(run("llama.cpp", rederived, engine, searched, ids) for ids in prompts[:3])
        entries = len(store)
    best = tokens["llama.cpp, kNN, drafts"]
    alone = max(tokens[name] for name in ALONE)
    record(
        args.name,
        vars(args),
        {
            "entries": entries,
            "precision": {name: _precision(one) for name, one in models.items()},
            "tokens_a_second_of_processor_time": tokens,
            "knn_to_llama_cpp_alone": round(tokens["llama.cpp, kNN"] / alone, 3),
            "knn_with_drafts_to_llama_cpp_alone": round(best / alone, 3),
            "to_transformers_with_knn_and_drafts": round(
                best / tokens["transformers, kNN, drafts"], 3
            ),
            "same_text_with_and_without_drafts": {
                name: f"{count} of {len(prompts)}" for name, count in same.items()
            },
            "entries_a_second_of_processor_time": small,
            f"neighbors_shared_at_{K}": {
                "mean": round(float(shared.mean()), 4),
                "tenth_percentile": round(float(shared.quantile(0.1)), 4),
                "positions": len(shared),
            },
            "perplexity": perplexity,
            "engines_by_token": {
                "perplexity": [round(float(part.mean().neg().exp()), 4) for part in (p, q)],
                "mean_difference_of_log_p": round(float((p - q).abs().mean()), 4),
                "same_likeliest_token": round(float((likeliest == other).float().mean()), 4),
            },
            "largest_difference_of_log_p": difference,
            "start_of_chat": starts,
        },
    )


def _precision(model):
    return getattr(model, "precision", None) or str(model.dtype).removeprefix("torch.")


if __name__ == "__main__":
    main()
