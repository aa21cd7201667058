"""Compares rules for λ: the default, an `AdaptiveGate` that `build` fitted, and its rivals.

Each rule is asked at each step of texts that stand fast: documents that the datastore does not
hold, unrelated documents, what the model answers by itself to general questions through its chat
template, and sentences of the datastore after their first eight words. Greedy text is the same as
long as each step chooses its token. `--written` also writes text, and measures its speed.

    python benchmarks/default_rule.py MODEL STORE CORPUS [--held TEXTS | --in-turn] \\
        [--unrelated TEXTS] [--fit MORE] [--facts] [--written] [--result NAME]

`--in-turn` holds out each document of the corpus in turn, by leaving it out of the search. The gate
was fitted to some of these documents, each left out as well.
"""

import argparse
import json
import random
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from common import add_model_options, alternate, load, record

import knn_logits
from knn_logits.engine.forward import key_states_and_logits

HERE = Path(__file__).parent
QUESTIONS, FACTS = HERE / "general_questions.jsonl", HERE / "facts.jsonl"
HANDBOOK = HERE / "handbook.jsonl"
WORDS, MORE, ANSWER = 8, 10, 40
HELD_TOKENS = 400


@dataclass
class Text:
    """A text whose tokens from `first` on are asked for, with the model's states and scores."""

    ids: torch.Tensor
    first: int
    states: torch.Tensor
    scores: torch.Tensor
    question: dict | None = None

    @property
    def targets(self):
        return self.ids[0, self.first :]

    def asked(self, memory):
        """Returns the memory's log-probability of each token, its choice, and its λ."""
        memory.retriever.begin_text()
        logs, choices, lmbdas = [], [], []
        size = 1 if memory.retriever.follows_text else 64
        for start in range(0, len(self.targets), size):
            states = self.states[:, start : start + size]
            end = self.first + start + states.shape[1] - 1
            log_p_lm = torch.log_softmax(self.scores[start : start + size].float(), dim=-1)
            vote = memory.vote(memory.neighbors(states, self.ids[:, :end]), log_p_lm)
            targets = self.targets[start : start + size]
            logs.append(vote.log_p.gather(-1, targets[:, None])[:, 0])
            choices.append(vote.log_p.argmax(dim=-1))
            lmbdas.append(vote.lmbdas)
        return torch.cat(logs), torch.cat(choices), torch.cat(lmbdas)

    @property
    def alone(self):
        """The model's log-probability of each token, and its choice."""
        logs = torch.log_softmax(self.scores.float(), dim=-1)
        return logs.gather(-1, self.targets[:, None])[:, 0], logs.argmax(dim=-1)


@torch.no_grad()
def text_of(model, location, ids, first, question=None):
    ids = torch.tensor([ids])
    states, logits = key_states_and_logits(model, location, {"input_ids": ids})
    part = slice(first - 1, ids.shape[1] - 1)
    return Text(ids, first, states[:, part].clone(), logits[0, part].half(), question)


def is_right(text, answers):
    """Whether an answer stands in a text; a short one only as a word."""
    text = text.lower()
    words = [rf"(?<!\w){re.escape(one)}(?!\w)" if len(one) <= 3 else re.escape(one)
             for one in answers]  # fmt: skip
    return any(re.search(one, text) for one in words)


def chat(tokenizer, question):
    turn = [{"role": "user", "content": question}]
    if tokenizer.chat_template is None:
        return tokenizer(question)["input_ids"]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def answers(model, tokenizer, location):
    """What the model answers by itself."""
    lines = QUESTIONS.read_text().splitlines()
    questions = [json.loads(line) for line in lines]
    found = []
    for start in range(0, len(questions), 35):
        part = questions[start : start + 35]
        prompts = [chat(tokenizer, one["question"]) for one in part]
        size = max(map(len, prompts))
        end = tokenizer.eos_token_id
        ids = torch.tensor([[end] * (size - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (size - len(one)) + [1] * len(one) for one in prompts])
        output = model.generate(
            ids, attention_mask=mask, max_new_tokens=ANSWER, do_sample=False, pad_token_id=end
        )
        for question, prompt, own in zip(part, prompts, output[:, size:].tolist(), strict=True):
            own = own[: own.index(end) + 1] if end in own else own
            found.append(text_of(model, location, [*prompt, *own], len(prompt), question))
    return found


def sentences(model, tokenizer, location, texts, number):
    """Passages of a corpus from the beginning of a sentence, asked for after some words.

    Returns for each beginning all passages that have it: any of them is right.
    """
    passages = {}
    for document in knn_logits.read_corpus([texts]):
        for paragraph in document.text.split("\n\n"):
            if re.search(r"^\s|::|``|^[=\-#*.>|+]|http", paragraph, re.MULTILINE):
                continue
            for start in re.finditer(r"(?:(?<=\. )|(?<=\.\n)|^)[A-Z]", paragraph):
                rest = paragraph[start.start() :]
                ends = [one.end() for one in re.finditer(r"\S+", rest)]
                if len(ends) >= WORDS + MORE:
                    wholes = passages.setdefault(rest[: ends[WORDS - 1]], set())
                    wholes.add(rest[: ends[WORDS + MORE - 1]])
    chosen = sorted(passages)
    random.Random(0).shuffle(chosen)
    found = []
    for before in chosen[:number]:
        prompt = tokenizer(before)["input_ids"]
        wholes = [tokenizer(whole)["input_ids"] for whole in sorted(passages[before])]
        wholes = [ids for ids in wholes if ids[: len(prompt)] == prompt]
        if wholes:
            found.append([text_of(model, location, ids, len(prompt)) for ids in wholes])
    return found


def is_continued(memory, texts):
    """Whether greedy text after a beginning is that of one of the passages that have it."""
    while texts:
        (_, choices, _), targets = texts[0].asked(memory), texts[0].targets
        differing = (choices != targets).nonzero()
        if not len(differing):
            return True
        at = int(differing[0])
        start = [*targets[:at].tolist(), int(choices[at])]
        texts = [text for text in texts if text.targets[: at + 1].tolist() == start]
    return False


def parts_of(model, tokenizer, location, documents):
    """The beginning and the middle of each document, by its id."""
    found = []
    for document in documents:
        for part in (document.text, document.text[len(document.text) // 2 :]):
            ids = tokenizer(part[: 20 * HELD_TOKENS], verbose=False)["input_ids"][:HELD_TOKENS]
            found.append((document.id, text_of(model, location, ids, 8)))
    return found


class Rival:
    """A rule of the literature as a gate over the neighbors of a sharp vote."""

    def __init__(self, name, lmbda):
        self.kind, self._lmbda = name, lmbda

    def weigh(self, neighbors, log_weights, metric, log_p_lm):
        del metric
        return self._lmbda(neighbors).nan_to_num(0.0).clamp(0.0, 0.999).to(log_p_lm), log_weights

    def lmbda(self, *_):
        raise NotImplementedError


def by_retrieval(neighbors, at=0.4, scale=0.1):
    """NEST (Li et al. 2024): the model's share by how alike the distances of all neighbors are."""
    far = neighbors.distances.sqrt()
    finite = far.isfinite()
    ratio = far.amin(-1) / far.masked_fill(~finite, 0.0).amax(-1)
    return 1.0 - torch.sigmoid((ratio - at) / scale)


def rules(model, tokenizer, store, fit):
    """Each rule's name and the settings of its memory."""
    settings = store.manifest.settings
    found = {
        "adaptive gate (default)": {},
        f"λ {settings.lmbda:g}, of the datastore": {"lmbda": settings.lmbda},
        "λ 0.25": {"lmbda": 0.25},
        "relative retrieval confidence (NEST, Li et al. 2024)": {
            "lmbda": Rival("nest", by_retrieval)
        },
    }
    if fit is not None:
        documents = list(knn_logits.read_corpus([fit]))[:8]
        short = [knn_logits.Document(one.text[:8000], one.id) for one in documents]
        tuned = knn_logits.tune(model, tokenizer, store, short, gate="meta-k")
        chosen = {"k": tuned.chosen.k, "temperature": tuned.chosen.temperature}
        chosen["suffix_weight"] = tuned.chosen.suffix_weight
        found["λ tuned on 8 other documents"] = {"lmbda": tuned.chosen.lmbda, **chosen}
        found["meta-k (Zheng et al. 2021), fitted to 8 other documents"] = {
            "lmbda": tuned.gate,
            **chosen,
        }
    return found


def gains(memory, parts, in_turn):
    """Nats per token over the model and the share of right tokens, together and by document."""
    changes, right, alone, by_document = 0.0, 0, 0, {}
    for document, text in parts:
        asked = memory.asked(exclude=(document,)) if in_turn else memory
        logs, choices, _ = text.asked(asked)
        own, own_choices = text.alone
        gain, tokens = float((logs - own).sum()), len(text.targets)
        changes += gain
        right += int((choices == text.targets).sum())
        alone += int((own_choices == text.targets).sum())
        before = by_document.get(document, (0.0, 0))
        by_document[document] = (before[0] + gain, before[1] + tokens)
    total = sum(tokens for _, tokens in by_document.values())
    return {
        "documents": len(by_document),
        "tokens": total,
        "nats_a_token": round(changes / total, 4),
        "right": round(right / total, 4),
        "right_alone": round(alone / total, 4),
        "documents_that_lose": sum(gain < -1e-3 for gain, _ in by_document.values()),
        "worst_nats_a_token": round(min(gain / n for gain, n in by_document.values()), 4),
    }


def measured(memory, tokenizer, questions, passages, texts, in_turn):
    """The figures of one rule."""
    asked = right = same = 0
    for text in questions:
        own = text.targets.tolist()
        if not is_right(tokenizer.decode(own), text.question["answers"]):
            continue
        asked += 1
        _, choices, _ = text.asked(memory)
        first = (choices != text.alone[1]).nonzero()
        until = len(own) if not len(first) else int(first[0])
        same += until == len(own)
        right += is_right(tokenizer.decode(own[:until]), text.question["answers"])
    result = {
        name: gains(memory, parts, in_turn and name == "held") for name, parts in texts.items()
    }
    return result | {
        "questions": {"asked": asked, "right": right, "same_text": same},
        "sentences": {
            "asked": len(passages),
            "continued": sum(is_continued(memory, one) for one in passages),
        },
    }


def repeated(ids, size=4):
    """The share of n-grams of a text that occurred before in it."""
    grams = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
    return 1.0 - len(set(grams)) / max(1, len(grams))


def speed(writer, ids, settings, **others):
    """The speed of a writer, a model or a processor, to that of the model alone."""
    settings = {**settings, "attention_mask": torch.ones_like(ids)}
    model = getattr(writer, "memory", None)
    model = writer if model is None else model.model
    alone, mixed = alternate(
        lambda: model.generate(ids, **settings),
        lambda: writer.generate(ids, **settings, **others),
        3,
    )
    return round(min(alone) / min(mixed), 3)


def written(memory, model, tokenizer, prompts, tokens=64):
    """Text that is written from prompts: repetition, searches, and speed to the model alone."""
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    settings["pad_token_id"] = tokenizer.eos_token_id
    texts, searched, result = [], 0, {}
    with knn_logits.KNNLogitsProcessor(model, memory, record=False) as knn:
        knn.loop_size = None
        search = memory.retriever.search

        def counted(queries, *others):
            nonlocal searched
            searched += len(queries)
            return search(queries, *others)

        knn.memory.retriever.search = counted
        for prompt in prompts:
            ids = torch.tensor([prompt])
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), logits_processor=[knn], **settings
            )
            texts.append(output[0, len(prompt) :].tolist())
        result["tokens"] = sum(map(len, texts))
        result["searched"] = searched
        result["repeated_4grams"] = round(sum(map(repeated, texts)) / len(texts), 4)
        result["loops"] = sum(repeated(text[-32:]) > 0.5 for text in texts)
        del knn.memory.retriever.search
        size = min(map(len, prompts))
        for rows in (1, 8):
            batch = torch.tensor([prompt[:size] for prompt in prompts[:rows]])
            result[f"speed_batch_{rows}"] = speed(model, batch, settings, logits_processor=[knn])
        ids = torch.tensor([prompts[0]])
        result["speed_with_drafts"] = speed(knn, ids, settings)
    return result


def facts(model, tokenizer):
    """Whether facts that prompt and document share are said again, in a handbook of its own."""
    rows = [json.loads(line) for line in FACTS.read_text().splitlines()]
    documents = [knn_logits.Document(row["document"], f"fact-{n}") for n, row in enumerate(rows)]
    documents += list(knn_logits.read_corpus([str(HANDBOOK)]))
    said, by_model = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        store = knn_logits.build_datastore(model, tokenizer, documents, Path(folder) / "facts")
        with knn_logits.KNNLogitsProcessor(model, store) as knn:
            for row in rows:
                ids = torch.tensor([tokenizer(row["prompt"])["input_ids"]])
                texts = [
                    write(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
                    for write in (knn.generate, model.generate)
                ]
                own, alone = (tokenizer.decode(text) for text in texts)
                said += own.startswith(row["answer"])
                by_model += alone.startswith(row["answer"])
                print(f"{row['answer']!r}: {own!r}; alone {alone!r}", flush=True)
    return {"asked": len(rows), "said": said, "said_by_the_model_alone": by_model}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_model_options(parser)
    parser.add_argument("store")
    parser.add_argument("corpus")
    parser.add_argument("--held", help="documents of its kind that the datastore does not hold")
    parser.add_argument("--in-turn", action="store_true", help="hold out the corpus's documents")
    parser.add_argument("--unrelated", help="documents of another kind")
    parser.add_argument("--fit", help="more documents, for the rivals that are fitted")
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--only", help="measure only rules whose names begin so")
    parser.add_argument("--facts", action="store_true")
    parser.add_argument("--written", action="store_true")
    parser.add_argument("--result", default="default_rule")
    options = parser.parse_args()
    model, tokenizer = load(options.model, options.dtype, options.device)
    memory = knn_logits.Memory(model, options.store)
    store, location = memory.stores[0], memory.location
    texts = {}
    for name, source in (
        ("held", options.corpus if options.in_turn else options.held),
        ("unrelated", options.unrelated),
    ):
        if source is not None:
            documents = list(knn_logits.read_corpus([source]))[: options.documents]
            texts[name] = parts_of(model, tokenizer, location, documents)
    questions = answers(model, tokenizer, location)
    passages = sentences(model, tokenizer, location, options.corpus, options.sentences)
    rows = {}
    for name, settings in rules(model, tokenizer, store, options.fit).items():
        if not name.startswith(options.only or ""):
            continue
        asked = memory.asked(**settings)
        rows[name] = measured(asked, tokenizer, questions, passages, texts, options.in_turn)
        print(name, rows[name], flush=True)
    result = {"gate": store.manifest.gate and store.manifest.gate.model_dump(), "rules": rows}
    if options.written:
        prompts = [one[0].ids[0, : one[0].first].tolist() for one in passages]
        result["written"] = written(memory, model, tokenizer, prompts[:32])
    if options.facts:
        result["facts"] = facts(model, tokenizer)
    record(options.result, {**vars(options), "entries": len(store)}, result)


if __name__ == "__main__":
    main()
