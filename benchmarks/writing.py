"""Compares texts that use a datastore's settings for writing, those for scoring, and no kNN.

For each text it measures how much the text repeats itself, whether it is blank, and how much of it
is in the corpus word for word. For words that come mostly from the memory it also measures the
share of their strongest passage.

    python benchmarks/writing.py MODEL --store STORE HELD_OUT [--store STORE HELD_OUT ...] \
        [--prompts 100] [--show 3] [--mauve]

With `--mauve` it computes MAUVE (Pillutla et al. 2021), too: how near the distribution of the texts
is to that of the corpus's own continuations, from 0 to 1. It needs `pip install mauve-text`.
"""

import argparse
import importlib.util
import itertools
import statistics
from functools import partial

import numpy as np
import torch
from common import load, record

import knn_logits

PROMPT, NEW = 48, 64


def prompts_of(texts, tokenizer, number, seed):
    """Takes prompts from random places of held-out documents, and the tokens that follow."""
    documents = [
        tokenizer(one.text, verbose=False)["input_ids"] for one in knn_logits.read_corpus([texts])
    ]
    documents = [ids for ids in documents if len(ids) > PROMPT + NEW]
    sizes = np.array([len(ids) for ids in documents], float)
    numbers = np.random.default_rng(seed)
    found = []
    for place in numbers.choice(len(documents), number, p=sizes / sizes.sum()):
        ids = documents[place]
        start = int(numbers.integers(0, len(ids) - PROMPT - NEW))
        found.append((ids[start : start + PROMPT], ids[start + PROMPT : start + PROMPT + NEW]))
    return found


def repeated(ids, n=4):
    """Returns the share of a text's n-grams that occurred in it before."""
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def described(texts, blank, corpus, n=8):
    """Computes the figures of a set of texts, each of which is a list of tokens."""
    shares = [repeated(ids) for ids in texts]
    empty = [float(blank[torch.tensor(ids)].float().mean()) if ids else 1.0 for ids in texts]
    pairs = [pair for ids in texts for pair in itertools.pairwise(ids)]
    grams = [tuple(ids[at : at + n]) for ids in texts for at in range(len(ids) - n + 1)]
    return {
        "repeated_4_grams": round(statistics.mean(shares), 4),
        "looping": sum(share > 0.5 for share in shares),
        "blank": sum(share > 0.5 for share in empty),
        "distinct_2_grams": round(len(set(pairs)) / max(1, len(pairs)), 4),
        "in_the_corpus": round(statistics.mean(one in corpus for one in grams), 4),
    }


def write(model, tokenizer, prompts, processor=None, **settings):
    """Continues all prompts, 25 at a time.

    Returns:
        The new tokens of each prompt, and the traces if there is a processor.
    """
    texts, traces = [], []
    for first in range(0, len(prompts), 25):
        ids = torch.tensor([prompt for prompt, _ in prompts[first : first + 25]])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
            logits_processor=[processor] if processor else None,
            **settings,
        )
        for row in output[:, PROMPT:].tolist():
            texts.append(row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row
                         else row)  # fmt: skip
        if processor:
            traces += list(processor.trace(output, tokenizer, max_neighbors=1))
    return texts, traces


def strongest(traces):
    """Returns the median share of the strongest passage, over tokens with an influence of 0.5."""
    shares = [
        token.neighbors[0].influence
        for sequence in traces
        for token in sequence.tokens
        if token.influence >= 0.5 and token.neighbors
    ]
    return round(statistics.median(shares), 4) if shares else None


def states_of(model, prompts, texts):
    """Returns the model's last state of each prompt and its text: float32 [texts, width]."""
    rows = [
        torch.tensor([[*prompt, *text]]) for (prompt, _), text in zip(prompts, texts, strict=True)
    ]
    with torch.no_grad():
        found = [model(row, output_hidden_states=True).hidden_states[-1][0, -1] for row in rows]
    return torch.stack(found).float().numpy()


def mauve_of(states, corpus):
    """Returns MAUVE of texts by their states: its mean and deviation over five clusterings."""
    from mauve import compute_mauve

    found = [
        compute_mauve(p_features=states, q_features=corpus, seed=seed, device_id=-1, verbose=False)
        for seed in range(5)
    ]
    values = [float(one.mauve) for one in found]
    return {
        "mauve": round(statistics.mean(values), 3),
        "deviation": round(statistics.stdev(values), 3),
    }


def measure(model, tokenizer, folder, texts, options):
    """Measures the figures of one datastore and one held-out text."""
    store = knn_logits.Datastore(folder)
    prompts = prompts_of(texts, tokenizer, options.prompts, options.seed)
    blank = torch.tensor([not tokenizer.decode([one]).strip() for one in range(len(tokenizer))])
    tokens = store.tokens.tolist()
    corpus = {tuple(tokens[at : at + 8]) for at in range(len(tokens) - 7)}
    result = {"corpus": described([after for _, after in prompts], blank, corpus)}
    run = partial(write, model, tokenizer, prompts)
    shown = {"corpus": [after for _, after in prompts], "model": run()[0]}
    result["model"] = described(shown["model"], blank, corpus)
    for name, given, settings in (
        ("scoring", {"preset": "scoring"}, {}),
        ("writing", {}, knn_logits.generation_settings(store)),
    ):
        with knn_logits.KNNLogitsProcessor(model, store, **given) as knn:
            shown[name], traces = run(knn, **settings)
        result[name] = described(shown[name], blank, corpus)
        result[name]["strongest_source"] = strongest(traces)
    if options.mauve:
        states = {name: states_of(model, prompts, texts) for name, texts in shown.items()}
        for name in ("model", "scoring", "writing"):
            result[name] |= mauve_of(states[name], states["corpus"])
    for number in range(min(options.show, len(prompts))):
        print(f"\n##### {tokenizer.decode(prompts[number][0])!r}")
        for name, all_texts in shown.items():
            print(f"--- {name}\n{tokenizer.decode(all_texts[number])!r}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--store", nargs=2, action="append", required=True)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mauve", action="store_true", help="needs mauve-text")
    options = parser.parse_args()
    if options.mauve and importlib.util.find_spec("mauve") is None:
        parser.error("--mauve needs a package that is not installed: pip install mauve-text")
    torch.set_num_threads(1)
    model, tokenizer = load(options.model)
    result = {
        f"{folder.rstrip('/').rsplit('/', 1)[-1]}": measure(
            model, tokenizer, folder, texts, options
        )
        for folder, texts in options.store
    }
    settings = {"model": options.model, "prompts": options.prompts, "seed": options.seed}
    record("writing", settings, result)


if __name__ == "__main__":
    main()
