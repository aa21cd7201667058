"""Compares a kNN memory with retrieval in the prompt, where files of a repository are completed.

    python benchmarks/completion.py MODEL [--sets rich werkzeug docs] [--docs FOLDER]

A fifth of the files of each set is held out, and the others are what can be retrieved. Asked are:

- the model alone;
- in-context RALM (Ram et al. 2023): BM25 finds the chunk of 64 tokens that fits the last 32 tokens
  best, and the 192 tokens from its beginning are put in front, anew after every 4 or 16 tokens;
- kNN with the datastore's own settings;
- kNN beside RALM that retrieves after every 16 tokens.

Text of the held-out files gives the share of next tokens that are right, and the gain over the
model alone, with the interval of 95% if other files had been drawn. A whole line of it is right if
each of its tokens is the likeliest after those before, since greedy search then writes it. Then
lines are written greedily, ten successive ones of a file as an editor asks for them: each after the
file's own text from 512 tokens before the first. A line's indentation is given, since tokens join
it with the line feed. Each way reads what it shares with its last prompt only once; a retrieved
passage that changes stands before all of it. Seconds are of the wall clock, and include reading.
Wheels and datastores lie in a cache outside the repository, a datastore for each commit. MODEL is a
folder, or a GGUF file.
"""

import argparse
import hashlib
import random
import re
import subprocess
import sys
import time
import zipfile
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise, takewhile, zip_longest
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from common import COMMIT, add_model_options, load, record
from rich.console import Console
from rich.table import Table

import knn_logits
from knn_logits.engine.forward import key_states_and_logits
from knn_logits.engine.hooks import CACHE_NAME
from knn_logits.engine.passages import bm25s, words_of
from knn_logits.hosting import PromptReader

PAGES = Path(__file__).parents[1] / "datastores" / "sqlite" / "pages"
PACKAGES = {"rich": "rich==13.9.4", "werkzeug": "werkzeug==3.1.3"}
CONTEXT, SPAN, LINE, RUN = 512, 64, 48, 10
QUERY, KEY, PASSAGE = 32, 64, 192
# After how many tokens each way retrieves passages, and whether it asks the memory.
WAYS = {
    "model alone": (None, False),
    "RALM, every 4": (4, False),
    "RALM, every 16": (16, False),
    "kNN": (None, True),
    "kNN and RALM, every 16": (16, True),
}
ALONE = next(iter(WAYS))


@dataclass
class Place:
    """A place in a held-out file: the tokens before it, and those that follow."""

    file: int
    before: list[int]
    after: list[int]


def package(requirement, cache):
    """Returns the Python files of a package as documents, without tables of data."""
    folder = cache / requirement
    if not list(folder.glob("*.whl")):
        fetch = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]
        subprocess.run([sys.executable, "-m", *fetch, str(folder), requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = sorted(name for name in files.namelist() if name.endswith(".py"))
        documents = [knn_logits.Document(files.read(name).decode(), name) for name in names]
    return [one for one in documents if re.search(r"^(def|class) ", one.text, re.MULTILINE)]


def split(documents):
    """Returns the held-out fifth of the documents, by a hash of their names, and the others."""
    documents = [one for one in documents if one.text.strip()]
    documents.sort(key=lambda one: hashlib.sha256(one.id.encode()).digest())
    held = max(1, round(len(documents) / 5))
    return documents[:held], documents[held:]


def places(texts, runs, number):
    """Returns so many places of the files' runs at random, as many runs of each file as possible.

    What stands before the places of a run begins at the same token.
    """
    numbers = random.Random(0)
    by_file = []
    for file, ids in enumerate(texts):
        found = []
        for run in runs(ids):
            begin = max(0, run[0][0] - CONTEXT)
            found.append([Place(file, ids[begin:first], ids[first:end]) for first, end in run])
        by_file.append(numbers.sample(found, len(found)))
    turns = [run for turn in zip_longest(*by_file) for run in turn if run is not None]
    return [place for run in turns for place in run][:number]


def spans(ids):
    """Runs of one span."""
    return [[(at, at + SPAN)] for at in range(QUERY, len(ids), SPAN)]


def lines(ids, ends):
    """Lines after a token with a line feed, which end within 48 tokens and are not empty."""
    firsts = [at + 1 for at, token in enumerate(ids) if token in ends]
    return [(first, end) for first, end in pairwise(firsts) if 1 < end - first <= LINE]


def runs_of_lines(ids, ends):
    """Runs of ten successive lines."""
    found = [line for line in lines(ids, ends) if line[0] >= QUERY]
    return [found[at : at + RUN] for at in range(0, len(found), RUN)]


class Passages:
    """What BM25 retrieves: the tokens from the beginning of a chunk on."""

    def __init__(self, tokenizer, texts):
        self._tokenizer = tokenizer
        self._separator = tokenizer("\n\n", add_special_tokens=False)["input_ids"]
        self._passages = [ids[at : at + PASSAGE] for ids in texts for at in range(0, len(ids), KEY)]
        self._index = bm25s().BM25()
        self._index.index([self._words(ids[:KEY]) for ids in self._passages], show_progress=False)

    def _words(self, ids):
        return words_of(self._tokenizer.decode(ids), "en")

    def best(self, ids):
        """Returns what to put before a text: nothing, where no chunk has a word of its end."""
        query = [word for word in self._words(ids[-QUERY:]) if word in self._index.vocab_dict]
        if not query:
            return []
        best = int(self._index.get_scores(query).argmax())
        return [*self._passages[best], *self._separator]

    def steps(self, place, stride):
        """Returns passages, each with the first and after the last token that it stands before."""
        text = [*place.before, *place.after]
        if stride is None:
            return [([], len(place.before), len(text))]
        starts = range(len(place.before), len(text), stride)
        found = [(self.best(text[:at]), at) for at in starts]
        runs = [(one, [at for _, at in run]) for one, run in groupby(found, key=itemgetter(0))]
        return [(one, run[0], min(run[-1] + stride, len(text))) for one, run in runs]


def asked(memory, ids, states, log_p_lm):
    """Returns the mixture's log-probabilities at the last steps of a text."""
    memory.retriever.begin_text()
    steps = states.shape[1]
    size = 1 if memory.retriever.follows_text else steps
    mixed = []
    for start in range(0, steps, size):
        part = slice(start, start + size)
        texts = ids[:, : ids.shape[1] - steps + min(start + size, steps)]
        mixed.append(memory.vote(memory.neighbors(states[:, part], texts), log_p_lm[part]).log_p)
    return torch.cat(mixed)


@torch.inference_mode()
def scored(memory, passages, place):
    """Returns each way's log-probability of each token of a span, and the likeliest token there."""
    found = {way: [] for way in WAYS}
    text = [*place.before, *place.after]
    for stride in dict.fromkeys(stride for stride, _ in WAYS.values()):
        for passage, start, end in passages.steps(place, stride):
            steps = end - start
            ids = torch.tensor([[*passage, *text[:end]]], device=memory.model.device)
            inputs = {"input_ids": ids, "logits_to_keep": steps + 1}
            states, logits = key_states_and_logits(memory.model, memory.location, inputs)
            log_p_lm, targets = torch.log_softmax(logits[0, :-1].float(), dim=-1), ids[0, -steps:]
            for way, (own, with_memory) in WAYS.items():
                if own == stride:
                    log_p = log_p_lm
                    if with_memory:
                        log_p = asked(memory, ids[:, :-1], states[:, -steps - 1 : -1], log_p_lm)
                    logs, first = log_p.gather(-1, targets[:, None])[:, 0], log_p.argmax(-1)
                    found[way] += zip(logs.tolist(), first.tolist(), strict=True)
    return {way: np.array(pairs) for way, pairs in found.items()}


def whole_lines(line_of, ends, place, likeliest):
    """Whether each whole line of a span is right, which greedy search then writes."""
    right = []
    for first, end in lines(place.after, ends):
        own = [*place.after[first : end - 1], int(likeliest[end - 1])]
        before = np.array(place.after[first : end - 1]) == likeliest[first : end - 1]
        right.append(bool(before.all()) and line_of(own) == line_of(place.after[first:end]))
    return right


def tokens_right(memory, line_of, passages, ends, asked_spans):
    """The figures of standing text."""
    found, rows = [scored(memory, passages, place) for place in asked_spans], {}
    for way in WAYS:
        gains = defaultdict(lambda: np.zeros(2))
        for place, one in zip(asked_spans, found, strict=True):
            gains[place.file] += (one[way] - one[ALONE])[:, 0].sum(), len(place.after)
        sums = np.array(list(gains.values()))
        drawn = np.random.default_rng(0).integers(len(sums), size=(2000, len(sums)))
        gain, likely = (one[..., 0] / one[..., 1] for one in (sums.sum(0), sums[drawn].sum(1)))
        right, whole = list[bool](), list[bool]()
        for place, one in zip(asked_spans, found, strict=True):
            right += (one[way][:, 1] == place.after).tolist()
            whole += whole_lines(line_of, ends, place, one[way][:, 1])
        rows[way] = {
            "right": round(float(np.mean(right)), 4),
            "whole_lines": len(whole),
            "whole_lines_right": round(float(np.mean(whole)), 4),
            "nats_a_token": round(float(gain), 4),
            "interval": np.quantile(likely, (0.025, 0.975)).round(4).tolist(),
        }
    return rows


def write(memory, passages, ends, way, reader, before):
    """Returns the tokens of a line, and the seconds that it took.

    What a way has read is kept for its next line, and while its passage stays the same.
    """
    stride, with_memory = WAYS[way]
    model, new, passage, inputs = memory.model, [], None, {}
    opened = knn_logits.KNNLogitsProcessor(model, memory) if with_memory else nullcontext(model)
    with opened as writer:
        started = time.perf_counter()
        while len(new) < LINE and (not new or new[-1] not in ends):
            found = passages.best([*before, *new]) if stride else []
            text = [*found, *before, *new]
            if found == passage:
                ids = torch.tensor([text], device=model.device)
                inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            else:
                with reader.read(text) as inputs:
                    passage = found
            output = writer.generate(
                **inputs,
                max_new_tokens=min(stride or LINE, LINE - len(new)),
                do_sample=False,
                eos_token_id=ends,
                pad_token_id=ends[0],
                return_dict_in_generate=True,
            )
            new += output.sequences[0, len(text) :].tolist()
            inputs[CACHE_NAME] = getattr(output, CACHE_NAME)
        return new, time.perf_counter() - started


def similarity(one, other):
    """Twice the longest common subsequence to both lengths: the edit similarity of completion."""
    row = [0] * (len(other) + 1)
    for sign in one:
        before, row = row, [0]
        for at, second in enumerate(other):
            row.append(before[at] + 1 if sign == second else max(row[at], before[at + 1]))
    return 2 * row[-1] / max(1, len(one) + len(other))


def written(memory, line_of, passages, ends, asked_lines):
    """The figures of lines that are written."""
    sums = {way: np.zeros(5) for way in WAYS}
    for way in WAYS:  # the first call is slower
        write(memory, passages, ends, way, PromptReader(memory.model), asked_lines[0].before)
    readers = {way: PromptReader(memory.model) for way in WAYS}
    for number, place in enumerate(asked_lines):
        line = line_of(place.after)
        for way in random.Random(number).sample(list(WAYS), len(WAYS)):
            new, seconds = write(memory, passages, ends, way, readers[way], place.before)
            own = line_of(new)
            saved = takewhile(lambda two: two[0] == two[1], zip(own, line, strict=False))
            alike = similarity(own, line)
            sums[way] += own == line, alike, len([*saved]), len(new), seconds
    characters = sum(len(line_of(place.after)) for place in asked_lines)
    return {
        way: {
            "written_right": round(right / len(asked_lines), 4),
            "edit_similarity": round(alike / len(asked_lines), 4),
            "characters_saved": round(saved / characters, 4),
            "tokens_a_second": round(tokens / seconds, 2),
            "seconds_a_line": round(seconds / len(asked_lines), 2),
        }
        for way, (right, alike, saved, tokens, seconds) in sums.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.set_defaults(dtype="bfloat16")
    parser.add_argument("--sets", nargs="+", default=[*PACKAGES, "docs"], help="some of these")
    parser.add_argument("--docs", default=str(PAGES), help="a folder of documentation")
    parser.add_argument("--tokens", type=int, default=4000, help="of standing text, a set")
    parser.add_argument("--lines", type=int, default=60, help="to write, a set")
    parser.add_argument("--files", type=int, help="the most files of a datastore (default: all)")
    parser.add_argument("--lmbda", type=float, help="λ in place of the datastore's own rule")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", default="~/.cache/knn-logits-completion")
    parser.add_argument("--name", default="completion", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cache = Path(args.cache).expanduser()
    if args.model.endswith(".gguf"):
        model = knn_logits.GGUFModel(args.model)
        tokenizer = model.tokenizer
    else:
        model, tokenizer = load(args.model, args.dtype, args.device)
    feeds = {token for token in range(len(tokenizer)) if "\n" in tokenizer.decode([token])}
    ends = sorted(feeds | {*tokenizer.all_special_ids})
    read = {name: partial(package, one, cache) for name, one in PACKAGES.items()}
    read["docs"] = lambda: list(knn_logits.read_corpus([args.docs]))
    plain, result = {"add_special_tokens": False, "verbose": False}, {}

    def line_of(ids):
        return tokenizer.decode(ids).split("\n")[0].rstrip()

    for name in args.sets:
        held, others = split(read[name]())
        others = others[: args.files]
        version = repr((COMMIT, Path(args.model).resolve(), args.dtype, others)).encode()
        folder = cache / f"{name}-{hashlib.sha256(version).hexdigest()[:12]}"
        if not (folder / "datastore.json").exists():
            knn_logits.build_datastore(model, tokenizer, others, folder)
        memory = knn_logits.Memory(model, folder, lmbda=args.lmbda)
        texts, retrieved = (
            [tokenizer(one.text, **plain)["input_ids"] for one in part] for part in (held, others)
        )
        passages = Passages(tokenizer, retrieved)
        asked_spans = places(texts, spans, -(-args.tokens // SPAN))
        asked_lines = places(texts, partial(runs_of_lines, ends=ends), args.lines)
        rows = {way: {} for way in WAYS}
        for figures, asked_places in ((tokens_right, asked_spans), (written, asked_lines)):
            if asked_places:
                found = figures(memory, line_of, passages, ends, asked_places)
                rows = {way: rows[way] | found[way] for way in WAYS}
        table = Table(name, *rows[ALONE])
        for way, row in rows.items():
            table.add_row(way, *map(str, row.values()))
        Console(width=150).print(table)
        result[name] = {
            "files": len(others),
            "entries": len(memory.stores[0]),
            "held_files": len(held),
            "tokens": sum(len(place.after) for place in asked_spans),
            "lines": len(asked_lines),
            "ways": rows,
        }
    record(args.name, vars(args), result)


if __name__ == "__main__":
    main()
