"""Trains the demo's language model and its tokenizer on generated text.

Three losses are added. The first is the usual one: predict the next token. The others make the
model's states good keys (`keys.py`): documents are predicted from other documents, and answers from
the documents that hold them. The state is the one that a datastore keeps by default, what enters
the last feed-forward network.

    python datastores/demo/train.py --out datastores/demo/model
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from pathlib import Path

import lessons
import text
import torch
from keys import States, document_loss, question_loss
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

END = "<|endoftext|>"
LENGTH = 256
# A fact's number and the place in it share one number.
PLACES = 32
# The first steps have larger batches and no bank, since their keys are of no use a few steps later.
EARLY = 325
EARLY_THINGS, EARLY_NOTES = 10, 14
# The second course: names that differ by little and twice the productions, at a rate that goes
# down once more. It begins with the weights that the first one saved, and with a new optimizer.
FIRST_COURSE = 3000
SECOND_RATE, SECOND_PLATEAU, SECOND_WARM_UP = 0.6, 0.4, 50
SECOND_THINGS, SECOND_NOTES = (6, 10), 8
# The third: the same with many vague questions, at a low rate, for as long as two hours allow. The
# mean of the weights before and after it keeps what the second one learned.
SECOND_COURSE = 5900
THIRD_RATE, THIRD_WARM_UP = 0.25, 20


def train_tokenizer(seed: int, vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE, each digit a token."""
    rng = random.Random(seed)
    sample = [
        "".join(piece for piece, _ in segment.pieces)
        for _ in range(150)
        for segment in lessons.lesson(rng, (12, 12), 16)
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


def make_model(options: argparse.Namespace, vocabulary: int) -> LlamaForCausalLM:
    """About three million weights."""
    torch.manual_seed(options.seed)
    heads = options.width // 32
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=options.width,
            num_hidden_layers=options.layers,
            intermediate_size=options.inner,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def encode(
    tokenizer: PreTrainedTokenizerFast, segments: list[lessons.Segment]
) -> list[list[tuple[int, int, int, int, int]]]:
    """Each segment's tokens.

    Returns:
        For each token its id, what the model should say there, its fact and place or -1, whether it
        begins an answer, and whether it is of a document (1), of an answer (2), ends one (3), or
        is of a question or the end of a document (0).
    """
    pieces = [piece for segment in segments for piece, _ in segment.pieces]
    encoded = iter(tokenizer(pieces, verbose=False)["input_ids"])
    silence = tokenizer(lessons.SILENCE)["input_ids"]
    rows = []
    for segment in segments:
        row: list[tuple[int, int, int, int, int]] = []
        for number, (_, fact) in enumerate(segment.pieces):
            for place, token in enumerate(next(encoded)):
                label = -1 if fact is None else fact * PLACES + min(place, PLACES - 1)
                begins = int(segment.asked and number == 1 and place == 0)
                say = silence[0] if begins else token
                if (segment.asked and number == 0) or not segment.spoken:
                    say = -100
                role = 1
                if segment.asked:
                    role = 2 if begins or label >= 0 else 0
                row.append((token, say, label, begins, role))
        row.append((0, 0 if segment.spoken else -100, -1, 0, 3 if segment.asked else 0))
        rows.append(row[:LENGTH])
    return rows


def make_batch(
    segments: list[lessons.Segment], tokenizer: PreTrainedTokenizerFast
) -> dict[str, torch.Tensor]:
    """Texts side by side in rows of `LENGTH`; every text sees only itself."""
    encoded = encode(tokenizer, segments)
    rows: list[list[tuple[int, ...]]] = []
    for number in sorted(range(len(encoded)), key=lambda n: -len(encoded[n])):
        part = [(*token, number, segments[number].kind) for token in encoded[number]]
        row = next((row for row in rows if len(row) + len(part) <= LENGTH), None)
        if row is None:
            row = []
            rows.append(row)
        row += part
    for row in rows:
        row += [(0, -100, -1, 0, 0, -1, -1)] * (LENGTH - len(row))
    token, say, fact, begins, role, segment, kind = torch.tensor(rows).unbind(-1)
    place = torch.arange(LENGTH)
    same = (segment[:, :, None] == segment[:, None, :]) & (place[:, None] >= place)
    start = torch.cat([torch.ones_like(segment[:, :1]), segment[:, 1:] != segment[:, :-1]], 1)
    first = torch.where(start.bool(), place, 0).cummax(1).values
    inside = (segment >= 0) & (segment == torch.roll(segment, -1, 1))
    inside[:, -1] = False

    def following(values: torch.Tensor, empty: int, by: int = 1) -> torch.Tensor:
        there = inside if by == 1 else inside & torch.roll(inside, -1, 1)
        return torch.where(there, torch.roll(values, -by, 1), empty)

    return {
        "ids": token,
        "positions": place - first,
        "mask": same[:, None],
        "segment": segment,
        "kind": kind,
        "target": following(token, 0),
        "say": following(say, -100),
        "after": following(token, 0, 2),
        "fact": following(fact, -1),
        "begins": following(begins, 0),
        "role": following(role, 0),
    }


def memory_losses(
    states: torch.Tensor,
    batch: dict[str, torch.Tensor],
    bank: list[torch.Tensor],
    *,
    close: bool = False,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The losses of documents and of questions.

    Args:
        states: [rows, length, dim].
        batch: As `make_batch` makes it.
        bank: For each of the two kinds of world, [m, dim], the keys before facts in earlier
            batches. A datastore has a hundred things that are easily mixed up.
        close: Whether a world's facts are for whoever states or asks the same fact alone: a
            document's value finds nothing near in the documents about other things, even where
            they have the same first word. Nothing is near either where an answer has ended.

    Returns:
        [5], the two losses, and shares of what was found; and this batch's keys for the bank.
    """
    # The end of a text is left out: a datastore has no entry for it.
    used = (batch["role"] > 0) & (batch["target"] > 0)
    if close:
        used |= batch["role"] == 3
    names = ("target", "after", "segment", "fact")
    everything = States(states[used], *(batch[name][used] for name in names))
    kind, role, begins = (batch[name][used] for name in ("kind", "role", "begins"))
    begins = begins.bool()
    sums, kept = torch.zeros(5), []
    for one in range(len(lessons.KINDS)):
        documents = everything.at((kind == one) & (role == 1))
        alone = close and one < len(text.KINDS)
        loss, right = document_loss(documents, documents.fact < 0 if alone else None)
        # The other kinds' questions are for another datastore: only where their answers begin.
        asked = (role == 2) & ((kind == one) | (begins & (torch.arange(len(kind)) % 4 == 0)))
        first = begins
        if alone:
            stated = (kind == one) & (role == 1) & (everything.fact >= 0)
            ended = (kind == one) & (role == 3) & (torch.arange(len(kind)) % 4 == 0)
            asked, first = asked | stated | ended, first | stated | ended
        others = bank[one] if one < len(bank) else states.new_zeros(0, states.shape[-1])
        found, good, left = question_loss(
            everything.at(asked), documents, first[asked], others, 1.0 if alone else 0.5
        )
        starts = (documents.fact >= 0) & (documents.fact % PLACES == 0)
        kept.append(documents.keys[starts].detach())
        sums = sums + torch.stack([loss, found, right, good, left]) / len(lessons.KINDS)
    # Two batches of notes may well speak of the same thing.
    return sums, kept[: len(text.KINDS)]


def rate(step: int, steps: int) -> float:
    """The share of the learning rate.

    The first course has a warm-up and a plateau, and goes down over its last three tenths. The
    second has a short warm-up and a lower plateau, and goes down as well. The third goes down from
    its beginning.
    """
    if step > SECOND_COURSE:
        done = (step - SECOND_COURSE) / (steps - SECOND_COURSE)
        return THIRD_RATE * min((step - SECOND_COURSE) / THIRD_WARM_UP, max(1 - done, 0.01))
    if step > FIRST_COURSE:
        done = (step - FIRST_COURSE) / (SECOND_COURSE - FIRST_COURSE)
        warm = (step - FIRST_COURSE) / SECOND_WARM_UP
        return SECOND_RATE * min(warm, 1.0, max((1 - done) / (1 - SECOND_PLATEAU), 0.01))
    last = 0.3 * FIRST_COURSE
    return min(step / 100, 1.0, max((FIRST_COURSE - step) / last, 0.01))


def train(options: argparse.Namespace) -> None:
    """The whole training; the log is written beside the model."""
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    if options.after:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.after)
        model = LlamaForCausalLM.from_pretrained(options.after, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(options.seed, options.vocabulary)
        model = make_model(options, len(tokenizer))
    options.out.mkdir(parents=True, exist_ok=True)
    if options.after:
        for file in options.after.glob("tokenizer*"):
            shutil.copy(file, options.out)
    else:
        tokenizer.save_pretrained(options.out)
    weights = sum(weight.numel() for weight in model.parameters())
    log = [{"weights": weights, "vocabulary": len(tokenizer), "schedule": options.steps}]
    if options.after:
        lines = (options.after.parent / "training.jsonl").read_text(encoding="utf-8")
        log += list(map(json.loads, lines.splitlines()[1:]))
    spent = log[-1].get("cpu_seconds", 0), log[-1].get("seconds", 0)
    print(log[0], flush=True)
    states: list[torch.Tensor] = []
    place = model.model.layers[-1].mlp
    place.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    optimizer = make_optimizer(model, options.lr)
    begin = time.perf_counter()
    sums = torch.zeros(7)
    bank: list[torch.Tensor] = []
    before: dict[str, torch.Tensor] | None = None
    first = log[-1].get("step", 0)
    for step in range(first + 1, (options.stop or options.steps) + 1):
        if step - 1 in (FIRST_COURSE, SECOND_COURSE):
            for weight in model.parameters():
                weight.data = weight.data.half().float()
            optimizer, bank = make_optimizer(model, options.lr), []
        if step == SECOND_COURSE + 1:
            before = {name: one.clone() for name, one in model.state_dict().items()}
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate(step, options.steps)
        # A batch depends on the seed and its step alone.
        rng = random.Random(f"{options.seed} {step}")
        early, close = step <= EARLY, step > FIRST_COURSE
        things, notes = (EARLY_THINGS, EARLY_NOTES) if early else (options.things, options.notes)
        segments = (
            lessons.lesson(rng, SECOND_THINGS, SECOND_NOTES, close=True, vague=step > SECOND_COURSE)
            if close
            else lessons.lesson(rng, (things, things), notes)
        )
        batch = make_batch(segments, tokenizer)
        states.clear()
        hidden = model.model(
            input_ids=batch["ids"],
            attention_mask=batch["mask"],
            position_ids=batch["positions"],
            use_cache=False,
        ).last_hidden_state
        said = batch["say"] >= 0
        lm = functional.cross_entropy(model.lm_head(hidden[said]), batch["say"][said])
        memory, keys = memory_losses(states[0], batch, bank, close=close)
        if not early:
            earlier = bank or [one[:0] for one in keys]
            bank = [torch.cat([e, k])[-options.bank :] for e, k in zip(earlier, keys, strict=True)]
        optimizer.zero_grad(set_to_none=True)
        (lm + options.memory_weight * (memory[0] + memory[1])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens = (batch["segment"] >= 0).sum()
        sums += torch.cat([lm.detach()[None], memory.detach(), tokens.float()[None]])
        if step % options.every == 0:
            names = ("loss", "memory_loss", "question_loss", "memory_right", "found", "silent")
            row = dict(
                zip(names, (round(s, 4) for s in (sums / options.every).tolist()), strict=False)
            )
            log.append(
                {
                    "step": step,
                    **row,
                    "tokens_a_step": round((sums[-1] / options.every).item()),
                    "seconds": round(spent[1] + time.perf_counter() - begin, 1),
                    "cpu_seconds": round(spent[0] + time.process_time(), 1),
                }
            )
            print(log[-1], flush=True)
            sums.zero_()
            save(model, options.out, before)
            lines = "".join(json.dumps(row) + "\n" for row in log)
            (options.out.parent / "training.jsonl").write_text(lines, encoding="utf-8")


def make_optimizer(model: LlamaForCausalLM, lr: float) -> torch.optim.AdamW:
    """The optimizer that each course begins with."""
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)


def save(model: LlamaForCausalLM, out: Path, before: dict[str, torch.Tensor] | None) -> None:
    """Writes the weights in half precision, or the mean of these and those of another model."""
    half = LlamaForCausalLM(model.config).to(torch.float16)
    half.load_state_dict(model.state_dict())
    if before is not None:
        weights = half.state_dict()
        half.load_state_dict({k: (one + weights[k].float()) / 2 for k, one in before.items()})
    half.generation_config.max_length = None
    # Greedy text of a model this small turns in circles; no sentence of it comes twice.
    half.generation_config.no_repeat_ngram_size = 8
    # After a prompt that ends as a sentence does, the likeliest answer would be none at all.
    half.generation_config.min_new_tokens = 1
    half.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=text.HERE / "model")
    parser.add_argument("--steps", type=int, default=6220)
    parser.add_argument(
        "--after", type=Path, help="the model of a finished course: only later ones are run"
    )
    parser.add_argument("--stop", type=int, help="end here, on the schedule of all steps")
    parser.add_argument("--things", type=int, default=7)
    parser.add_argument("--notes", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=2560)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--inner", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--memory-weight", type=float, default=1.0)
    parser.add_argument("--bank", type=int, default=600, help="keys of earlier batches")
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
