"""Trains the reader of `ask`: low-rank changes of the sentence encoder, by questions of SQuAD 1.1.

    torchrun --nproc_per_node 2 benchmarks/train_reader.py train-v1.1.json --minutes 62

Each question is read with the sentence that has its answer, and with sentences of the same article
that share words with it and have no answer. Some questions get the name or the number of something
else. The processes train on different examples, and take the mean of their weights now and then.
"""

import argparse
import json
import math
import random
import re
import time
from collections import Counter
from pathlib import Path
from statistics import fmean

import sentencex
import torch
import torch.distributed as dist
from bm25s.stopwords import STOPWORDS_EN
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from transformers import AutoModel, AutoTokenizer

from knn_logits.engine.encoder import default_encoder
from knn_logits.engine.reader import pooled

RANK, RATE, BATCH, TOKENS, WARM, TOGETHER = 16, 1.5e-3, 48, 112, 100, 12
# The embeddings and the first layer stay as they are.
FIRST = 1
MATRICES = ("attention.self.query", "attention.self.key", "attention.self.value",
            "attention.output.dense", "intermediate.dense", "output.dense")  # fmt: skip
COMMON = frozenset(STOPWORDS_EN)
NAMES = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b|\b\d{2,}\b")


def words(text):
    return re.findall(r"\w+", text.lower())


def plain(text):
    return f" {' '.join(words(text))} "


def sentences(article):
    """The sentences of an article: text, the one before it, paragraph, and where it ends there."""
    rows = []
    for number, paragraph in enumerate(article["paragraphs"]):
        end, before = 0, ""
        for text in filter(None, map(str.strip, sentencex.segment("en", paragraph["context"]))):
            end = max(end, paragraph["context"].find(text, end)) + len(text)
            rows.append((text, before, number, end))
            before = text
    return rows


def asked_of_another(question, sentence, context, names):
    """The question with a name or number of its sentence exchanged for another of the article."""
    shared = [name for name in NAMES.findall(question) if name in sentence[0] + sentence[1]]
    if not shared:
        return None
    name = random.choice(shared)
    others = [
        other for other in names
        if other.isdigit() == name.isdigit() and other not in context
        and (len(other) == len(name) or not other.isdigit())
    ]  # fmt: skip
    return question.replace(name, random.choice(others)) if others else None


def examples(article):
    """Yields questions, texts, and 1 if the text answers the question, 0 if not."""
    title, rows = article["title"].replace("_", " "), sentences(article)
    stems = [set(words(row[0])) - COMMON for row in rows]
    texts = [plain(row[0]) for row in rows]
    count = Counter(word for stem in stems for word in stem)
    idf = {word: math.log(1 + len(rows) / number) for word, number in count.items()}
    names = sorted({name for row in rows for name in NAMES.findall(row[0])})

    def below(row, headed, context):
        text = f"{row[1]} {row[0]}" if context and row[1] else row[0]
        return f"{title}\n{text}" if headed else text

    for number, paragraph in enumerate(article["paragraphs"]):
        for entry in paragraph["qas"]:
            question, answer = entry["question"].strip(), entry["answers"][0]
            place = answer["answer_start"]
            own = (at for at, row in enumerate(rows) if row[2] == number and place < row[3])
            right = next(own, None)
            if right is None or len(question) < 10:
                continue
            headed, context = random.choice([(0, 0), (1, 0), (1, 0), (1, 0), (1, 1)])
            yield question, below(rows[right], headed, context), 1.0
            asked = set(words(question)) - COMMON
            wrong = [at for at in range(len(rows)) if plain(answer["text"]) not in texts[at]]
            score = [math.fsum(idf[word] for word in asked & stem) for stem in stems]
            like = sorted((at for at in wrong if abs(at - right) > 1), key=lambda at: -score[at])
            near = [
                at for at in wrong
                if 0 < abs(at - right) <= 2 and rows[at][2] == number
                and plain(answer["text"]) not in plain(rows[at][1])
            ]  # fmt: skip
            if like:
                yield question, below(rows[random.choice(like[:2])], headed, context), 0.0
            if random.random() < 0.5 and (near or like[2:4]):
                yield question, below(rows[random.choice(near or like[2:4])], headed, 0), 0.0
            other = asked_of_another(question, rows[right], paragraph["context"], names)
            if other and random.random() < 0.5:
                yield other, below(rows[right], headed, context), 0.0


class LowRank(nn.Module):
    """A matrix with a low-rank change: Hu et al. (2021), "LoRA"."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, states):
        return self.linear(states) + states @ self.a.T @ self.b.T


class Trained(nn.Module):
    """The encoder with changes, and a head over [CLS] and the mean of the question's tokens."""

    def __init__(self, name):
        super().__init__()
        self.model = AutoModel.from_pretrained(name, dtype=torch.float32).requires_grad_(False)
        self.head = nn.Linear(2 * self.model.config.hidden_size, 1)
        for layer in self.model.encoder.layer[FIRST:]:
            for matrix in MATRICES:
                layer.set_submodule(matrix, LowRank(layer.get_submodule(matrix)))
            for module in layer.modules():
                if isinstance(module, nn.LayerNorm):
                    module.requires_grad_(True)

    def forward(self, inputs):
        return self.head(pooled(self.model(**inputs).last_hidden_state, inputs)).squeeze(1)

    def changes(self):
        """The trained weights by their names in the encoder, float16."""
        trained = {name: value for name, value in self.named_parameters() if value.requires_grad}
        return {name.removeprefix("model."): value.detach().half().contiguous()
                for name, value in trained.items()}  # fmt: skip


def batches(rows):
    """Yields batches of texts of about the same length, without end."""
    while True:
        for start in range(0, len(rows), BATCH * 50):
            part = sorted(rows[start : start + BATCH * 50], key=lambda row: len(row[0] + row[1]))
            parts = [part[at : at + BATCH] for at in range(0, len(part), BATCH)]
            random.shuffle(parts)
            yield from parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("squad", type=Path, help="train-v1.1.json")
    parser.add_argument("--minutes", type=float, default=62)
    parser.add_argument("--output", default="knn_logits/engine/reader.safetensors")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    articles = json.loads(options.squad.read_text(encoding="utf-8"))["data"]
    rows = [row for article in articles for row in examples(article)]
    random.shuffle(rows)
    rows = rows[dist.get_rank() :: dist.get_world_size()]
    tokenizer = AutoTokenizer.from_pretrained(default_encoder())
    trained = Trained(default_encoder())
    weights = [value for value in trained.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.98))
    started, done, losses = time.monotonic(), 0.0, []
    for step, batch in enumerate(batches(rows), 1):
        optimizer.param_groups[0]["lr"] = RATE * min(1, step / WARM) * max(0.02, 1 - done)
        questions, texts, labels = zip(*batch, strict=True)
        inputs = tokenizer(questions, texts, padding=True, truncation="only_second",
                           max_length=TOKENS, return_tensors="pt")  # fmt: skip
        with torch.autocast("cpu", torch.bfloat16):
            scores = trained(inputs)
        loss = binary_cross_entropy_with_logits(scores, torch.tensor(labels))
        loss.backward()
        clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % TOGETHER == 0:
            mean = parameters_to_vector(weights).detach()
            dist.all_reduce(mean)
            vector_to_parameters(mean / dist.get_world_size(), weights)
            spent = torch.tensor([time.monotonic() - started])
            dist.broadcast(spent, 0)
            done = float(spent) / 60 / options.minutes
            if first:
                print(f"{done:.0%}, step {step}, loss {fmean(losses[-100:]):.3f}", flush=True)
            if done >= 1:
                break
    if first:
        save_file(trained.changes(), options.output)


if __name__ == "__main__":
    main()
