"""Compares rules that say when a memory speaks, and what the model then knows by itself.

Each rule is asked at each step of texts that stand fast: what the model answers by itself to
general questions through its chat template, sentences of the datastore after their first eight
words, and held-out documents. Greedy text is the same as long as each step chooses its token, so no
rule needs to write. `--written` also writes the answers with the datastore's own rule.

    python benchmarks/trust.py MODEL --store STORE TEXTS [--store STORE TEXTS ...] \
        [--held HELD_OUT] [--fit MORE] [--result trust]
"""

import argparse
import json
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from common import record
from transformers import AutoModelForCausalLM, AutoTokenizer

import knn_logits
from knn_logits.engine.forward import key_states_and_logits

QUESTIONS = Path(__file__).parent / "general_questions.jsonl"
# The first questions are for whoever changes the rule; figures are of the others.
DEVELOPMENT = 30
WORDS, MORE, SENTENCES, ANSWER = 8, 10, 200, 40
HELD_DOCUMENTS, HELD_TOKENS = 12, 400


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
            vote = memory.vote(memory.neighbors(states, self.ids[:, :end], log_p_lm), log_p_lm)
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
    lines = QUESTIONS.read_text().splitlines()[DEVELOPMENT:]
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


def sentences(model, tokenizer, location, texts):
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
    for before in chosen[:SENTENCES]:
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


def held_out(model, tokenizer, location, texts):
    """The beginnings and the middles of held-out documents."""
    found = []
    for document in list(knn_logits.read_corpus([texts]))[:HELD_DOCUMENTS]:
        for part in (document.text, document.text[len(document.text) // 2 :]):
            ids = tokenizer(part[: 20 * HELD_TOKENS], verbose=False)["input_ids"][:HELD_TOKENS]
            found.append(text_of(model, location, ids, 8))
    return found


class Rival:
    """A rule of the literature as a gate over the neighbors of a sharp vote."""

    def __init__(self, name, lmbda):
        self.kind, self._lmbda = name, lmbda

    def weigh(self, neighbors, log_weights, metric, log_p_lm):
        del metric
        values, w = neighbors.values, log_weights.exp()
        same = values[:, :, None] == values[:, None, :]
        p_knn = (same * w[:, None, :]).sum(-1)
        lmbda = self._lmbda(neighbors, w, p_knn, log_p_lm.gather(-1, values).exp(), log_p_lm)
        return lmbda.nan_to_num(0.0).clamp(0.0, 0.999), log_weights

    def lmbda(self, *_):
        raise NotImplementedError


def by_retrieval(neighbors, w, p_knn, p_lm, log_p_lm, at=0.4, scale=0.1):
    """NEST (Li et al. 2024): the model's share by how alike the distances of all neighbors are."""
    del w, p_knn, p_lm, log_p_lm
    far = neighbors.distances.sqrt()
    finite = far.isfinite()
    ratio = far.amin(-1) / far.masked_fill(~finite, 0.0).amax(-1)
    return 1.0 - torch.sigmoid((ratio - at) / scale)


def by_divergence(neighbors, w, p_knn, p_lm, log_p_lm):
    """AdaCAD (Wang et al. 2025): the Jensen-Shannon divergence of both distributions, in bits."""
    del neighbors, log_p_lm
    middle = (p_knn + p_lm) / 2
    # Each weight stands for its part of its token; tokens without neighbors add half their p_LM.
    knn = (w * (p_knn / middle).log2()).nansum(-1)
    lm = (w / p_knn * p_lm * (p_lm / middle).log2()).nansum(-1)
    rest = 1.0 - (w / p_knn * p_lm).nansum(-1)
    return (knn + lm + rest) / 2


def by_entropy(neighbors, w, p_knn, p_lm, log_p_lm):
    """CoCoA (Khandelwal et al. 2025), its gap of confidence: σ of how much surer the memory is."""
    del neighbors, p_lm
    memory = -(w * p_knn.log()).nansum(-1)
    model = -(log_p_lm.exp() * log_p_lm).nan_to_num(0.0).sum(-1)
    return torch.sigmoid(model - memory)


def rules(model, tokenizer, store, fit):
    """Each rule's name and the settings of its memory."""
    own = store.manifest.writing
    sharp = {"k": own.k, "temperature": own.temperature, "retomaton": False}
    found = {"the datastore's own": {}}
    for lmbda in (0.7, 0.05):
        found[f"λ {lmbda} (Khandelwal et al. 2020)"] = {"lmbda": lmbda}
    if fit is not None:
        for kind, name in (("distance", "λ by distance (Drozdov et al. 2022)"),
                           ("learned", "learned gate (He et al. 2021)")):  # fmt: skip
            documents = list(knn_logits.read_corpus([fit]))[:8]
            short = [knn_logits.Document(one.text[:8000], one.id) for one in documents]
            tuned = knn_logits.tune(model, tokenizer, store, short, gate=kind, samples=0)
            settings = {
                "k": tuned.k,
                "temperature": tuned.temperature,
                "suffix_weight": tuned.chosen.suffix_weight,
                "retomaton": False,
            }
            found[name] = {"lmbda": tuned.gate.gate if tuned.gate else tuned.lmbda, **settings}
    for name, rule in (("relative retrieval confidence (NEST, Li et al. 2024)", by_retrieval),
                       ("divergence (AdaCAD, Wang et al. 2025)", by_divergence),
                       ("gap of entropies (after CoCoA, 2025)", by_entropy)):  # fmt: skip
        found[name] = {"lmbda": Rival(name, rule), **sharp}
    return found


def measured(memory, tokenizer, questions, passages, held):
    """The figures of one rule."""
    right = same = kept = asked = 0
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
    for texts in passages:
        kept += is_continued(memory, texts)
    changes = [float((text.asked(memory)[0] - text.alone[0]).sum()) for text in held]
    # A document's beginning and middle count together.
    by_document = [sum(changes[at : at + 2]) for at in range(0, len(changes), 2)]
    tokens = sum(len(text.targets) for text in held)
    return {
        "asked": asked,
        "right": right,
        "same_text": same,
        "passages": len(passages),
        "in_several_places": sum(len(texts) > 1 for texts in passages),
        "continued": kept,
        "held_documents": len(by_document),
        "held_worse": sum(one < -1e-3 for one in by_document),
        "held_worst_nats": round(min(by_document, default=0.0), 2),
        "held_nats_a_token": round(sum(changes) / max(1, tokens), 4),
    }


def written(memory, model, tokenizer, questions):
    """Answers that are really written, with drafts, by the datastore's own rule."""
    right = same = asked = ended = 0
    largest, seconds = 0.0, [0.0, 0.0]
    settings = {"max_new_tokens": ANSWER, "do_sample": False}
    with knn_logits.KNNLogitsProcessor(model, memory) as knn:
        for text in questions:
            if not is_right(tokenizer.decode(text.targets), text.question["answers"]):
                continue
            asked += 1
            prompt = text.ids[:, : text.first]
            started = time.perf_counter()
            alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
            middle = time.perf_counter()
            output = knn.generate(prompt, **settings)
            seconds[0] += middle - started
            seconds[1] += time.perf_counter() - middle
            new = output[0, text.first :].tolist()
            same += torch.equal(output, alone)
            right += is_right(tokenizer.decode(new), text.question["answers"])
            ended += new[-1] == tokenizer.eos_token_id
            trace = knn.trace(output, tokenizer)[0]
            largest = max([largest, *(one.influence for one in trace.tokens)])
    return {
        "asked": asked,
        "right": right,
        "same_text": same,
        "ended": ended,
        "largest_share": round(largest, 3),
        "speed_with_drafts_to_alone": round(seconds[0] / seconds[1], 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--store", nargs=2, action="append", required=True)
    parser.add_argument("--held", help="documents that no datastore has")
    parser.add_argument("--fit", help="more such documents, on which gates are fitted")
    parser.add_argument("--written", action="store_true")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--result", default="trust")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    result, questions, held = {}, None, []
    for folder, texts in options.store:
        memory = knn_logits.Memory(model, folder)
        store, location = memory.stores[0], memory.location
        if questions is None:
            questions = answers(model, tokenizer, location)
            if options.held:
                held = held_out(model, tokenizer, location, options.held)
        passages = sentences(model, tokenizer, location, texts)
        rows = {}
        for name, settings in rules(model, tokenizer, store, options.fit).items():
            asked = knn_logits.Memory.of(model, memory, **settings)
            rows[name] = measured(asked, tokenizer, questions, passages, held)
            print(store.name, name, rows[name], flush=True)
        if options.written:
            rows["written"] = written(memory, model, tokenizer, questions)
            print(store.name, "written", rows["written"], flush=True)
        result[store.name] = rows
    record(options.result, {"model": options.model, "dtype": options.dtype}, result)


if __name__ == "__main__":
    main()
