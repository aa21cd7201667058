"""Trains the demo's language model and its tokenizer on generated text.

Two losses are added. The first is the usual one: predict the next token. The second makes the
model's states good keys: each token, and each pair of tokens, is predicted from the states of the
*other* pages in the batch alone, which is the training with in-batch memories of Zhong et al.
(2022), "Training Language Models with Memory Augmentation". The state is the one that a datastore
keeps by default, what enters the last feed-forward network.

    python datastores/demo/train.py --out datastores/demo/model
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import text
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

END = "<|endoftext|>"
LENGTH = 256
KEY_TEMPERATURE = 0.05


def train_tokenizer(seed: int, vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE, each digit a token."""
    rng = random.Random(seed)
    sample = [
        part
        for _ in range(300)
        for kind in text.KINDS
        for part in text.training_segments(rng, kind)
    ]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(sample, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=END, model_max_length=LENGTH
    )


def make_model(seed: int, vocabulary: int) -> LlamaForCausalLM:
    """About two million weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=192,
            num_hidden_layers=4,
            intermediate_size=512,
            num_attention_heads=6,
            num_key_value_heads=6,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def pack(parts: list[list[int]], first_segment: int) -> tuple[list[list[int]], list[list[int]]]:
    """Puts texts side by side into rows of `LENGTH`; says for each place which text it is of.

    Returns:
        Rows of token ids, and rows of segment numbers, -1 where a row is empty.
    """
    ids: list[list[int]] = []
    segments: list[list[int]] = []
    for number, part in enumerate(sorted(parts, key=len, reverse=True)):
        part = part[:LENGTH]
        row = next((r for r, have in enumerate(ids) if len(have) + len(part) <= LENGTH), None)
        if row is None:
            row = len(ids)
            ids.append([])
            segments.append([])
        ids[row] += part
        segments[row] += [first_segment + number] * len(part)
    for have, of in zip(ids, segments, strict=True):
        have += [0] * (LENGTH - len(have))
        of += [-1] * (LENGTH - len(of))
    return ids, segments


def make_batch(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, things: int
) -> dict[str, torch.Tensor]:
    """One world of each kind, packed; every text sees only itself."""
    ids, segments, kinds = [], [], []
    for number, kind in enumerate(text.KINDS):
        parts = text.training_segments(rng, kind, things)
        encoded = [[*part, 0] for part in tokenizer(parts, verbose=False)["input_ids"]]
        rows, of = pack(encoded, number * 10_000)
        ids += rows
        segments += of
        kinds += [number] * len(rows)
    segment = torch.tensor(segments)
    place = torch.arange(LENGTH)
    same = (segment[:, :, None] == segment[:, None, :]) & (place[:, None] >= place)
    start = torch.cat([torch.ones_like(segment[:, :1]), segment[:, 1:] != segment[:, :-1]], 1)
    first = torch.where(start.bool(), place, 0).cummax(1).values
    token = torch.tensor(ids)
    following = torch.roll(token, -1, 1)
    inside = (segment >= 0) & (segment == torch.roll(segment, -1, 1))
    inside[:, -1] = False
    return {
        "ids": token,
        "positions": place - first,
        "mask": same[:, None],
        "segment": segment,
        "target": torch.where(inside, following, -100),
        "after": torch.where(torch.roll(inside, -1, 1) & inside, torch.roll(token, -2, 1), 0),
        "kind": torch.tensor(kinds),
    }


def memory_loss(
    keys: torch.Tensor, target: torch.Tensor, after: torch.Tensor, segment: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Predicts each token from the other texts' states alone.

    Half of the loss asks the neighbors for the next token, half for the next two. The next token
    alone teaches too little where it is one of few: "founded by" goes on with one of ten titles, so
    that a wrong town's founder has the right title often enough.

    Args:
        keys: [n, dim], a state for each token to predict.
        target: [n], the token.
        after: [n], the token after it; 0 where the text ends, which fits any.
        segment: [n], the text it is of.

    Returns:
        The mean loss over tokens that another text has, and how much of them memory got right.
    """
    keys = functional.normalize(keys.float(), dim=-1)
    scores = keys @ keys.T / KEY_TEMPERATURE
    scores = scores.masked_fill(segment[:, None] == segment, -torch.inf)
    total = torch.logsumexp(scores, 1)
    one = target[:, None] == target
    two = one & ((after[:, None] == after) | (after[:, None] == 0) | (after == 0))
    losses, known = [], []
    for right in (one, two):
        hit = scores.masked_fill(~right, -torch.inf)
        known.append((hit > -torch.inf).any(1))
        losses.append((total[known[-1]] - torch.logsumexp(hit[known[-1]], 1)).mean())
    best = scores[known[0]].detach().argmax(1)
    return sum(losses) / 2, (target[best] == target[known[0]]).float().mean()


def train(options: argparse.Namespace) -> None:
    """The whole training; the log is written beside the model."""
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    rng = random.Random(options.seed)
    tokenizer = train_tokenizer(options.seed, options.vocabulary)
    model = make_model(options.seed, len(tokenizer))
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(options.out)
    weights = sum(weight.numel() for weight in model.parameters())
    log = [{"weights": weights, "vocabulary": len(tokenizer), "schedule": options.steps}]
    print(log[0], flush=True)
    states: list[torch.Tensor] = []
    place = model.model.layers[-1].mlp
    place.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    begin = time.perf_counter()
    sums = torch.zeros(4)
    for step in range(1, (options.stop or options.steps) + 1):
        share = min(step / 100, 0.5 + 0.5 * math.cos(math.pi * step / options.steps) + 0.01)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(share, 1.0)
        batch = make_batch(rng, tokenizer, options.things)
        states.clear()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(
                input_ids=batch["ids"],
                attention_mask=batch["mask"],
                position_ids=batch["positions"],
                use_cache=False,
            ).logits
        target = batch["target"]
        lm = functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())
        memory = [torch.zeros(()), torch.zeros(())]
        for kind in range(len(text.KINDS)):
            rows = batch["kind"] == kind
            # The end of a text is left out: a datastore has no entry for it.
            wanted = target[rows] > 0
            part = memory_loss(
                states[0][rows][wanted],
                target[rows][wanted],
                batch["after"][rows][wanted],
                batch["segment"][rows][wanted],
            )
            memory = [
                total + one / len(text.KINDS) for total, one in zip(memory, part, strict=True)
            ]
        optimizer.zero_grad(set_to_none=True)
        (lm + options.memory_weight * memory[0]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens = (batch["segment"] >= 0).sum()
        sums += torch.stack([lm.detach(), memory[0].detach(), memory[1], tokens.float()])
        if step % options.every == 0:
            lm_mean, memory_mean, right, count = (sums / options.every).tolist()
            log.append(
                {
                    "step": step,
                    "loss": round(lm_mean, 4),
                    "memory_loss": round(memory_mean, 4),
                    "memory_right": round(right, 4),
                    "tokens_a_step": round(count),
                    "seconds": round(time.perf_counter() - begin, 1),
                    "cpu_seconds": round(time.process_time(), 1),
                }
            )
            print(log[-1], flush=True)
            sums.zero_()
            save(model, options.out)
            lines = "".join(json.dumps(row) + "\n" for row in log)
            (options.out.parent / "training.jsonl").write_text(lines, encoding="utf-8")


def save(model: LlamaForCausalLM, out: Path) -> None:
    """Writes the weights in half precision."""
    half = LlamaForCausalLM(model.config).to(torch.float16)
    half.load_state_dict(model.state_dict())
    half.generation_config.max_length = None
    half.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=text.HERE / "model")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--stop", type=int, help="end here, on the schedule of all steps")
    parser.add_argument("--things", type=int, default=14)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--memory-weight", type=float, default=1.0)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
