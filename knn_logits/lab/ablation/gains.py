"""Studies of which tokens the neighbors help, and what the best λ for each would gain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from knn_logits.arrays import Array, Bools, Floats, Ints
from knn_logits.corpus.documents import Document
from knn_logits.lab.ablation.findings import Finding, Plot, apart
from knn_logits.lab.ablation.measuring import exact_search, log_p_knn, measure_base
from knn_logits.lab.ablation.shared_parts import Studied, stored_arrays
from knn_logits.metrics import DEFAULT_METRIC
from knn_logits.mixture.gates.distance import fit_distance_gate
from knn_logits.printable import one_line

_FREQUENCIES = {
    "never": 0,
    "1 to 9": 1,
    "10 to 99": 10,
    "100 to 999": 100,
    "1,000 to 9,999": 1000,
    "10,000 and more": 10_000,
}
_FREQUENT = 100
_POSITIONS = {"1 to 7": 1, "8 to 31": 8, "32 to 127": 32, "128 to 511": 128, "512 and on": 512}
_PARTS = 8
_SHOWN, _CONTEXT = 8, 10


@dataclass(frozen=True)
class _Tokens:
    """The tokens that are held out, under the base setting."""

    rows: Ints  # int64 [tokens], of the queries
    lm: Floats  # log p_LM, like the others float64 [tokens]
    knn: Floats  # log p_kNN
    mixed: Floats  # log p of the mixture
    lmbda: float
    ruled: float  # perplexity with a λ by the nearest distance, fitted on the other half

    @property
    def gain(self) -> Floats:
        """What the neighbors add, in nats."""
        return self.mixed - self.lm


def _tokens(studied: Studied) -> _Tokens:
    base, queries = measure_base(studied), studied.queries()

    def votes() -> dict[str, Array]:
        studied.progress("tokens", 0, None)
        search, best = exact_search(studied)(), base.best
        log_p, nearest = log_p_knn(queries, search, DEFAULT_METRIC, best.k, best.temperature)
        return {"log_p_knn": log_p.numpy(), "nearest": nearest.numpy()}

    arrays = stored_arrays(studied.work / "tokens.safetensors", votes)
    knn, nearest = arrays["log_p_knn"].astype(np.float64), arrays["nearest"]
    whole = queries.log_p_lm.double().numpy()
    second = queries.second.numpy()
    rule = fit_distance_gate(nearest[~second], whole[~second], knn[~second], DEFAULT_METRIC)
    rows = np.flatnonzero(second)
    lm, knn, lmbda = whole[rows], knn[rows], base.best.lmbda
    ruled = _mixed(lm, knn, np.interp(nearest[rows], rule.middles.numpy(), rule.lmbdas.numpy()))
    mixed = _mixed(lm, knn, lmbda)
    return _Tokens(rows, lm, knn, mixed, lmbda, math.exp(-float(ruled.mean())))


def _mixed(lm: Floats, knn: Floats, lmbda: Floats | float) -> Floats:
    with np.errstate(divide="ignore"):
        mixed: Floats = np.logaddexp(lm + np.log1p(-lmbda), knn + np.log(lmbda))
    return mixed


def study_oracle(studied: Studied) -> Finding:
    tokens, base = _tokens(studied), measure_base(studied)
    oracle = math.exp(-float(np.maximum(tokens.lm, tokens.knn).mean()))
    mixed = math.exp(-float(tokens.mixed.mean()))
    gap = 1.0 - oracle / mixed
    least, usual, ruled = apart(oracle, mixed, tokens.ruled)
    rows = [
        ("model alone", base.lm),
        (f"one λ, {tokens.lmbda:g}", mixed),
        ("λ by the nearest distance", tokens.ruled),
        ("oracle λ", oracle),
    ]
    return Finding(
        "Oracle λ per token",
        "Drozdov et al. (2022) and He et al. (2021) find that the best λ for each token is much "
        "better than one λ for all, and that a rule without knowledge of the token gains a part "
        "of this.",
        f"If each token takes the better of model and neighbors, perplexity is {least} in "
        f"place of {usual} ({-gap:+.1%}). A λ that follows the distance of the nearest "
        f"neighbor, fitted on the other half, gives {ruled}.",
        gap > 0.05 and tokens.ruled < mixed,
        ("λ", "perplexity"),
        rows,
        Plot("bars", [row[0] for row in rows], {"": [row[1] for row in rows]}, ""),
    )


def _finding(
    title: str, paper: str, result: str, holds: bool | None, label: str, rows: list[_Row]
) -> Finding:
    """A finding of the gain in several groups of tokens, which `label` names."""
    names, gains = [row[0] for row in rows], [row[-1] for row in rows]
    plot = Plot("bars", names, {"": gains}, label, "gain in nats a token")
    header = (label, "tokens", "model", "mixture", "gain in nats")
    return Finding(title, paper, result, holds, header, rows, plot)


def study_frequency(studied: Studied) -> Finding:
    tokens, queries = _tokens(studied), studied.queries()
    values = studied.store.values.numpy()
    targets = queries.targets.numpy()[tokens.rows]
    largest = max(int(values.max()), int(targets.max())) + 1
    counts = np.bincount(values, minlength=largest)[targets]
    gain, frequent = tokens.gain, counts >= _FREQUENT
    often = float(gain[frequent].mean()) if frequent.any() else 0.0
    rarely = float(gain[~frequent].mean()) if not frequent.all() else 0.0
    return _finding(
        "Gain by token frequency",
        "Nishida et al. (2025, arXiv 2503.22426) find that the neighbors help frequent tokens "
        "more than rare ones.",
        f"The mean log-likelihood of tokens that the corpus has {_FREQUENT} times or more grows by "
        f"{often:.2f} nats, and that of the others by {rarely:.2f}.",
        often > rarely,
        "occurrences in the corpus",
        _by_range(tokens, counts, _FREQUENCIES),
    )


def study_position(studied: Studied) -> Finding:
    tokens, queries = _tokens(studied), studied.queries()
    rows = _by_range(tokens, queries.inside.numpy()[tokens.rows], _POSITIONS)
    gains = [row[-1] for row in rows]
    best, least = rows[int(np.argmax(gains))][0], rows[int(np.argmin(gains))][0]
    return _finding(
        "Gain by position in the document",
        "No paper in this report studies the effect of the position.",
        f"Tokens at positions {best} gain most, {max(gains):.2f} nats, and those at {least} "
        f"gain least, {min(gains):.2f}."
        if len(rows) > 1
        else f"All held-out tokens are at positions {best}. They gain {gains[0]:.2f} nats.",
        None,
        "position in the document",
        rows,
    )


def study_part(studied: Studied) -> Finding:
    tokens, queries = _tokens(studied), studied.queries()
    documents = queries.documents.numpy()[tokens.rows]
    numbers = np.unique(documents)
    if len(numbers) > 1:
        parts = {number: _title(studied.texts[number]) for number in numbers.tolist()}
    else:
        documents = np.arange(len(tokens.rows)) * _PARTS // len(tokens.rows)
        parts = {number: f"part {number + 1}" for number in range(_PARTS)}
    masks = ((name, documents == number) for number, name in parts.items())
    rows = [_gain(name, tokens, mask) for name, mask in masks if mask.any()]
    least, most = (pick(rows, key=lambda row: row[-1]) for pick in (min, max))
    return _finding(
        "Gain by document",
        "No paper in this report compares documents.",
        f"The gain is between {least[-1]:.2f} nats in {least[0]} and {most[-1]:.2f} in {most[0]}.",
        None,
        "part of the text",
        rows,
    )


def _title(document: Document) -> str:
    return one_line(document.title or document.id)[:40]


def study_tokens(studied: Studied) -> Finding:
    tokens = _tokens(studied)
    gain = tokens.gain
    helped = _different(studied, tokens, np.argsort(-gain, kind="stable"))
    # Wherever no neighbor votes for the token, the loss in nats is the same. So the lost
    # probability says which token the model knew best.
    lost = np.exp(tokens.lm) - np.exp(tokens.mixed)
    hurt = _different(studied, tokens, np.argsort(-lost, kind="stable"))
    passages = ["Largest gains in nats, each token once:", ""]
    passages += [_passage(studied, tokens, row) for row in helped]
    passages += ["", "Largest losses of probability, each token once:", ""]
    passages += [_passage(studied, tokens, row) for row in hurt]
    better = float((gain > 0).mean())
    most = -float(gain.min())
    limit = -math.log1p(-tokens.lmbda) if tokens.lmbda < 1.0 else math.inf
    rows = [("better", better), ("worse", 1.0 - better)]
    return Finding(
        "Largest gains and losses",
        "Khandelwal et al. (2020), section 6, find that rare text gains most: names, facts, and "
        "near copies of the corpus.",
        f"{better:.0%} of the tokens become likelier. None loses more than {most:.2f} nats, and "
        f"none can lose more than {limit:.2f}, since the model's own share is 1 - λ.",
        None,
        ("tokens that get", "share"),
        rows,
        None,
        passages,
    )


_Row = tuple[str, int, float, float, float]


def _gain(name: str, tokens: _Tokens, rows: Bools) -> _Row:
    lm, mixed = float(tokens.lm[rows].mean()), float(tokens.mixed[rows].mean())
    return name, int(rows.sum()), math.exp(-lm), math.exp(-mixed), mixed - lm


def _by_range(tokens: _Tokens, numbers: Ints, firsts: dict[str, int]) -> list[_Row]:
    """The gain of the tokens in each range of numbers, by the first number of each."""
    ranges = np.searchsorted(list(firsts.values()), numbers, side="right") - 1
    masks = ((name, ranges == number) for number, name in enumerate(firsts))
    return [_gain(name, tokens, mask) for name, mask in masks if mask.any()]


def _different(studied: Studied, tokens: _Tokens, order: Ints) -> list[int]:
    """The first rows of an order whose tokens all differ."""
    targets = studied.queries().targets.numpy()[tokens.rows]
    seen: dict[int, int] = {}
    for row in order.tolist():
        seen.setdefault(int(targets[row]), row)
        if len(seen) == _SHOWN:
            break
    return list(seen.values())


def _passage(studied: Studied, tokens: _Tokens, row: int) -> str:
    queries, row_of_query = studied.queries(), int(tokens.rows[row])
    lm, mixed = tokens.lm[row], tokens.mixed[row]
    # The rows are in the order of the text. A document's first token has no row.
    context = slice(max(0, row_of_query - _CONTEXT), row_of_query)
    same = queries.documents[context] == queries.documents[row_of_query]
    token = int(queries.targets[row_of_query])
    text = studied.tokenizer.decode([*queries.targets[context][same].tolist(), token])
    word = studied.tokenizer.decode([token])
    start = one_line(text.removesuffix(word)).strip().replace("`", "'")
    marked = one_line(word).replace("`", "'").strip() or "␣"
    return (
        f"- {np.exp(lm):.2g} → {np.exp(mixed):.2g} ({mixed - lm:+.2f} nats): "
        f"`{start}` **`{marked}`**"
    )
