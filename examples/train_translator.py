"""Trains the tiny English-German translator of the notebook `a_glossary.ipynb`.

    python examples/train_translator.py

It knows the sentences of `datastores/glossary` and the words of its compounds ("wind", "cradle"),
but none of the compounds themselves. So it translates "wind cradle" word by word, and the glossary,
which says "Brisenstuhl", is news to it.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "datastores" / "glossary"))

from pairs import FRAMES, QUESTIONS, TERMS, TUNING, pair  # noqa: E402

# What a compound begins with, and how it does so in German.
PARTS = """
wind Wind, snow Schnee, hand Hand, cloud Wolken, street Straßen, night Nacht,
water Wasser, ball Ball, grass Gras, stone Stein, bird Vogel, paper Papier,
sand Sand, fire Feuer, tree Baum, ice Eis, milk Milch, bread Brot, star Stern,
rain Regen, wood Holz, river Fluss, moon Mond, garden Garten
"""
# What it ends with, and its gender.
HEADS = """
cradle wiege f, gate tor n, bridge brücke f, table tisch m, anchor anker m,
basket korb m, ladder leiter f, oven ofen m, clock uhr f, shirt hemd n, wheel rad n,
boot stiefel m, mirror spiegel m, rope seil n, drum trommel f, hammer hammer m,
wagon wagen m, tent zelt n, bucket eimer m, chair stuhl m, trumpet trompete f,
coat mantel m, shovel schaufel f, sail segel n
"""
SENTENCES = FRAMES + TUNING + QUESTIONS


def _rows(text):
    return [tuple(one.split()) for one in text.split(",")]


# Every compound of these words but those of the glossary.
KNOWN = [
    (f"{part} {head}", first + second, gender)
    for part, first in _rows(PARTS)
    for head, second, gender in _rows(HEADS)
    if f"{part} {head}" not in {english for english, _, _ in TERMS}
]


def batch_of(chance, size):
    """Sources and targets of one step."""
    return [pair(chance.choice(SENTENCES), chance.choice(KNOWN)) for _ in range(size)]


def make_tokenizer():
    """A byte-level BPE that ends each text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=576,
        special_tokens=["</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    known = [text for noun in KNOWN for frame in SENTENCES[::3] for text in pair(frame, noun)]
    bpe.train_from_iterator(known, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>", pad_token="<pad>")


def make_model(vocabulary, width):
    """A Marian that nobody has trained."""
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        max_position_embeddings=96,
        dropout=0.0,
        pad_token_id=1,
        eos_token_id=0,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        scale_embedding=True,
        max_length=64,
    )
    return MarianMTModel(config)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "translator")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    chance = random.Random(options.seed)
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer), options.width)
    print(sum(weight.numel() for weight in model.parameters()), "weights")
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, options.steps)
    model.train()
    for step in range(options.steps):
        sources, targets = zip(*batch_of(chance, options.batch), strict=True)
        inputs = tokenizer(list(sources), return_tensors="pt", padding=True)
        labels = tokenizer(list(targets), return_tensors="pt", padding=True)["input_ids"]
        labels = labels.masked_fill(labels == 1, -100)
        loss = model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == options.steps - 1:
            print(step, round(loss.item(), 4), flush=True)
    model.half().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
