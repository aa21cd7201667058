"""kNN in vLLM: its probabilities beside the library's, and tokens a second with and without it.

python benchmarks/vllm_engine.py MODEL STORE TEXT exact
python benchmarks/vllm_engine.py MODEL STORE TEXT speed
python benchmarks/vllm_engine.py MODEL none TEXT build

Prompts are beginnings of the documents of a text that the datastore does not hold. `exact` gives
vLLM a small cache and few tokens a step, so that it cuts prompts and preempts requests. `speed`
asks for so many texts at once. `build` makes a datastore of TEXT with vLLM and with transformers.
Each part is a process of its own, since vLLM keeps one engine in a process. `--engine` changes
vLLM's own settings, such as '{"tensor_parallel_size": 2}', and `--name` keeps the result apart.
"""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
from common import first_documents, record

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from transformers import AutoModelForCausalLM, AutoTokenizer

import knn_logits
from knn_logits.engine.forward import key_states_and_logits

OFF = {"knn": 0}


def prompts_of(text, tokenizer, number):
    """Beginnings of 24 to 144 tokens of documents, each longer than the one before."""
    documents = first_documents(text, tokenizer, 1 << 20)
    ids = [tokenizer(document.text)["input_ids"] for document in documents]
    ids = [one for one in ids if len(one) > 200]
    return [ids[place % len(ids)][: 24 + 8 * (place % 16)] for place in range(number)]


def parameters(tokens, **extra):
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0, extra_args=extra or None
    )


def write(llm, prompts, given):
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(asked, given, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs], outputs


def logs_of(outputs):
    """log p of each token that vLLM sampled."""
    return [
        [step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True)]
        for one in (output.outputs[0] for output in outputs)
    ]


@torch.no_grad()
def library_logs(memory, prompt, answer, settings):
    """log p of each token of an answer, by a pass of transformers and the same memory."""
    ids = torch.tensor([prompt + answer[:-1]])
    inputs = {"input_ids": ids}
    states, logits = key_states_and_logits(memory.model, memory.location, inputs)
    first = len(prompt) - 1
    log_p_lm = logits[0, first:].float().log_softmax(-1)
    log_p = log_p_lm
    if settings != OFF:
        asked = memory.asked(**{name[4:]: value for name, value in settings.items()})
        neighbors = asked.neighbors(states[:, first:], ids)
        log_p = asked.vote(neighbors, log_p_lm).log_p
    return log_p.gather(-1, torch.tensor(answer)[:, None])[:, 0].tolist()


def exact(args, prompts):
    from vllm import LLM

    # The blocks hold a third of 16 texts.
    given = {
        "model": args.model,
        "dtype": "float32",
        "max_model_len": 512,
        "enforce_eager": True,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 32,
        "block_size": 32,
        "num_gpu_blocks_override": 24,
        "disable_log_stats": False,
    }
    llm = LLM(**given | args.engine)
    settings = [{}, {"knn_lmbda": 0.4, "knn_k": 16}, {"knn_suffix_weight": 4.0}, OFF]
    mixed = [settings[place % 4] for place in range(16)]
    together, outputs = write(llm, prompts, [parameters(args.tokens, **one) for one in mixed])
    logs = {"16 texts, cut prompts": (together, outputs, mixed)}
    # The second time, the beginning of the prompt is in the cache.
    twice = [
        [write(llm, [prompt], parameters(args.tokens)) for _ in range(2)] for prompt in prompts
    ]
    alone, again = zip(*twice, strict=True)
    for name, ran in (("1 text", alone), ("1 text, prefix cache", again)):
        logs[name] = [one[0][0] for one in ran], [one[1][0] for one in ran], [{}] * 16
    others = [*prompts, *(prompt[4:] for prompt in prompts)]
    given = [parameters(args.tokens)] * 16
    given += [parameters(args.tokens, **settings[1 + place % 3]) for place in range(16)]
    among, _ = write(llm, others, given)
    counted = ("num_preemptions", "prefix_cache_hits", "spec_decode_num_accepted_tokens")
    values = {one.name: getattr(one, "value", None) for one in llm.get_metrics()}
    counts = {name: values.get(f"vllm:{name}") for name in counted}

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    memory = knn_logits.Memory(model, args.store)
    errors = {}
    for name, (answers, outputs, asked) in logs.items():
        found = logs_of(outputs)
        wanted = [
            library_logs(memory, prompt, answer, one)
            for prompt, answer, one in zip(prompts, answers, asked, strict=True)
        ]
        gaps = torch.tensor(found) - torch.tensor(wanted)
        errors[name] = {"largest": float(gaps.abs().max()), "mean": float(gaps.abs().mean())}
    alike = sum(one[0][0] == answer for one, answer in zip(alone, among, strict=False))
    return {
        "difference of log p": errors,
        "counts": counts,
        "same text alone and among 31 others": f"{alike} of 16",
    }


def speed(args, prompts):
    from vllm import LLM

    llm = LLM(
        model=args.model,
        dtype=args.dtype,
        max_model_len=512,
        max_num_seqs=64,
        enable_prefix_caching=False,
        **{"enforce_eager": True} | args.engine,
    )
    result = {}
    for size in (1, 16, 64):
        asked = prompts[:size]
        tokens = size * args.tokens
        seconds = {"with": [], "without": []}
        write(llm, asked, parameters(4))
        for _ in range(args.rounds):
            for name, extra in (("with", {}), ("without", OFF)):
                wall, cpu = time.perf_counter(), time.process_time()
                write(llm, asked, parameters(args.tokens, **extra))
                took = time.perf_counter() - wall, time.process_time() - cpu
                seconds[name].append(took)
        best = {
            name: [min(part) for part in zip(*took, strict=True)] for name, took in seconds.items()
        }
        result[f"{size} texts"] = {
            "tokens a second with kNN": tokens / best["with"][0],
            "without": tokens / best["without"][0],
            "ratio": best["without"][0] / best["with"][0],
            "ratio of seconds of the processor": best["without"][1] / best["with"][1],
        }
        print(size, result[f"{size} texts"], flush=True)
    return result


def build(args):
    from vllm import LLM

    llm = LLM(model=args.model, dtype=args.dtype, max_model_len=1024, enforce_eager=True)
    kind = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=kind).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    settings = {"encoder": "", "calibrate": False, "overwrite": True}

    def by_vllm(folder):
        llm.collective_rpc("knn_build", args=([args.text], folder, settings))

    def by_transformers(folder):
        documents = knn_logits.read_corpus([args.text])
        knn_logits.build_datastore(model, tokenizer, documents, folder, **settings)

    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for name, make in (("vLLM", by_vllm), ("transformers", by_transformers)):
                place = f"{folder}/{name}"
                wall, cpu = time.perf_counter(), time.process_time()
                make(place)
                took = time.perf_counter() - wall, time.process_time() - cpu
                entries = len(knn_logits.Datastore(place))
                best = [entries / seconds for seconds in took]
                result[name] = [*map(max, zip(best, result.get(name, best), strict=True))]
        keys = [
            torch.from_numpy(np.array(knn_logits.Datastore(f"{folder}/{name}").keys(range(2048))))
            for name in result
        ]
    result = {name: dict(zip(("entries a second", "entries a second of the processor"), best,
                             strict=True)) for name, best in result.items()}  # fmt: skip
    gap = (keys[0].float() - keys[1].float()).norm(dim=-1) / keys[1].float().norm(dim=-1)
    near = [torch.cdist(one.float(), one.float()).topk(17, largest=False)[1] for one in keys]
    shared = (near[0][:, :, None] == near[1][:, None, :]).any(-1).float().mean()
    return result | {
        "largest relative difference of a key": float(gap.max()),
        "share of a key's 16 neighbors that are the same": float(shared),
    }


def asks_vllm(title, parts):
    """The options of a script of several parts, each for a model, a datastore and a text."""
    parser = argparse.ArgumentParser(description=title)
    for name in ("model", "store", "text"):
        parser.add_argument(name)
    parser.add_argument("part", choices=list(parts))
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--name", default="", help="keeps the result apart")
    return parser


def main():
    parser = asks_vllm(__doc__.splitlines()[0], ["exact", "speed", "build"])
    parser.add_argument("--engine", type=json.loads, default={})
    args = parser.parse_args()
    if args.part == "build":
        result = build(args)
    else:
        os.environ["KNN_LOGITS_DATASTORE"] = args.store
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        prompts = prompts_of(args.text, tokenizer, 16 if args.part == "exact" else 64)
        result = {"exact": exact, "speed": speed}[args.part](args, prompts)
        result["entries"] = knn_logits.Datastore(args.store).manifest.entries
    record(f"vllm_{args.part}{args.name}", vars(args), result)


if __name__ == "__main__":
    main()
