"""Studies which tokens the neighbors help, and how much the best λ for each token would gain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from knn_logits.arrays import Bools, Floats, Ints
from knn_logits.corpus.documents import Document
from knn_logits.lab.ablation.bench import Studied
from knn_logits.lab.ablation.finding import Finding, Plot
from knn_logits.lab.ablation.measuring import exact_search, log_p_knn, measure_base
from knn_logits.mixture.gates.fitting import fit_distance_gate
from knn_logits.printable import one_line
from knn_logits.store.files import write_arrays
from knn_logits.store.reading import read_arrays

_FREQUENCIES = (0, 1, 10, 100, 1000, 10_000)
_FREQUENT = 100
_POSITIONS = (1, 8, 32, 128, 512)
_PARTS = 8
_SHOWN, _CONTEXT = 8, 10


@dataclass(frozen=True)
class _Tokens:
    """The tokens that are held out.

    Attributes:
        rows: int64 [tokens], the rows of the queries.
        lm: float64 [tokens], log p_LM.
        knn: float64 [tokens], log p_kNN under the base setting.
        mixed: float64 [tokens], log p of the mixture under the base setting.
        lmbda: λ of the base setting.
        ruled: The perplexity with a λ by the distance of the nearest neighbor. The rule is fitted
            on the other half.
    """

    rows: Ints
    lm: Floats
    knn: Floats
    mixed: Floats
    lmbda: float
    ruled: float


def _tokens(studied: Studied) -> _Tokens:
    base, queries = measure_base(studied), studied.queries()
    path = studied.work / "tokens.safetensors"
    if not path.exists():
        studied.progress("tokens", 0, None)
        voted, nearest = log_p_knn(
            queries, exact_search(studied)(), "l2", base.best.k, base.best.temperature
        )
        write_arrays(path, {"log_p_knn": voted.numpy(), "nearest": nearest.numpy()}, {})
    arrays = read_arrays(path)[0]
    knn, near = arrays["log_p_knn"].astype(np.float64), arrays["nearest"]
    whole = queries.log_p_lm.double().numpy()
    second = queries.second.numpy()
    rule = fit_distance_gate(near[~second], whole[~second], knn[~second], "l2")
    rows = np.flatnonzero(second)
    lm, knn, lmbda = whole[rows], knn[rows], base.best.lmbda
    ruled = _mixed(lm, knn, np.interp(near[rows], rule.middles.numpy(), rule.lmbdas.numpy()))
    mixed = _mixed(lm, knn, lmbda)
    return _Tokens(rows, lm, knn, mixed, lmbda, math.exp(-float(ruled.mean())))


def _mixed(lm: Floats, knn: Floats, lmbda: Floats | float) -> Floats:
    with np.errstate(divide="ignore"):
        found: Floats = np.logaddexp(lm + np.log1p(-lmbda), knn + np.log(lmbda))
    return found


def study_oracle(studied: Studied) -> Finding:
    """Computes the perplexity with the best λ for each token."""
    some, base = _tokens(studied), measure_base(studied)
    oracle = math.exp(-float(np.maximum(some.lm, some.knn).mean()))
    mixed = math.exp(-float(some.mixed.mean()))
    gap = 1.0 - oracle / mixed
    rows = [
        ("model alone", base.lm),
        (f"one λ, {some.lmbda:g}", mixed),
        ("λ by the nearest distance", some.ruled),
        ("oracle λ", oracle),
    ]
    return Finding(
        "A λ that is right for each token",
        "Drozdov et al. (2022) and He et al. (2021) find that the best λ for each token is much "
        "better than one λ for all, and that a rule without knowledge of the token gains a part "
        "of this.",
        f"If each token takes the better of model and neighbors, perplexity is {oracle:.1f} in "
        f"place of {mixed:.1f} ({-gap:+.1%}). A λ that follows the distance of the nearest "
        f"neighbor, fitted on the other half, gives {some.ruled:.1f}.",
        gap > 0.05 and some.ruled < mixed,
        ("λ", "perplexity"),
        rows,
        Plot("bars", [row[0] for row in rows], {"": [row[1] for row in rows]}, ""),
    )


def study_frequency(studied: Studied) -> Finding:
    """Computes the gain of tokens by their frequency in the corpus."""
    some, queries = _tokens(studied), studied.queries()
    values = studied.store().values.long()
    targets = queries.targets.numpy()[some.rows]
    largest = max(int(values.max()), int(targets.max())) + 1
    counts = np.bincount(values.numpy(), minlength=largest)[targets]
    names = ["never", "1 to 9", "10 to 99", "100 to 999", "1,000 to 9,999", "10,000 and more"]
    place = np.searchsorted(_FREQUENCIES, counts, side="right") - 1
    rows = [
        _gain(name, some, place == number)
        for number, name in enumerate(names)
        if (place == number).any()
    ]
    gain = some.mixed - some.lm
    frequent = counts >= _FREQUENT
    often = float(gain[frequent].mean()) if frequent.any() else 0.0
    rarely = float(gain[~frequent].mean()) if not frequent.all() else 0.0
    return Finding(
        "Which tokens gain, by their frequency",
        "Nishida et al. (2025, arXiv 2503.22426) find that the neighbors help frequent tokens "
        "more than rare ones.",
        f"The mean log-likelihood of tokens that the corpus has {_FREQUENT} times or more grows by "
        f"{often:.2f} nats, and that of the others by {rarely:.2f}.",
        often > rarely,
        ("times in the corpus", "tokens", "model", "mixture", "gain in nats"),
        rows,
        _gains(rows, "times in the corpus"),
    )


def study_position(studied: Studied) -> Finding:
    """Computes the gain of tokens by their place in the document."""
    some, queries = _tokens(studied), studied.queries()
    inside = queries.inside.numpy()[some.rows]
    names = ["1 to 7", "8 to 31", "32 to 127", "128 to 511", "512 and on"]
    place = np.searchsorted(_POSITIONS, inside, side="right") - 1
    rows = [
        _gain(name, some, place == number)
        for number, name in enumerate(names)
        if (place == number).any()
    ]
    gains = [row[-1] for row in rows]
    best, least = rows[int(np.argmax(gains))][0], rows[int(np.argmin(gains))][0]
    return Finding(
        "Which tokens gain, by their place in the document",
        "None of the papers that this report follows says how the gain depends on the place.",
        f"Tokens at the places {best} gain most, {max(gains):.2f} nats, and those at {least} "
        f"gain least, {min(gains):.2f}."
        if len(rows) > 1
        else f"All tokens that are held out are at the places {best}. They gain {gains[0]:.2f} "
        "nats.",
        None,
        ("place", "tokens", "model", "mixture", "gain in nats"),
        rows,
        _gains(rows, "place in the document"),
    )


def study_part(studied: Studied) -> Finding:
    """Computes the gain in each document, or in each eighth of a single document."""
    some, queries = _tokens(studied), studied.queries()
    documents = queries.documents.numpy()[some.rows]
    numbers = np.unique(documents)
    if len(numbers) > 1:
        named = [
            (_title(studied.texts[number]), documents == number) for number in numbers.tolist()
        ]
    else:
        parts = np.arange(len(some.rows)) * _PARTS // len(some.rows)
        named = [(f"part {number + 1}", parts == number) for number in range(_PARTS)]
    rows = [_gain(name, some, own) for name, own in named if own.any()]
    least, most = (pick(rows, key=lambda row: row[-1]) for pick in (min, max))
    return Finding(
        "Which parts of the text gain",
        "None of the papers that this report follows says how the gain differs between documents.",
        f"The gain is between {least[-1]:.2f} nats in {least[0]} and {most[-1]:.2f} in {most[0]}.",
        None,
        ("part of the text", "tokens", "model", "mixture", "gain in nats"),
        rows,
        _gains(rows, "part of the text"),
    )


def _title(document: Document) -> str:
    return one_line(document.title or document.id)[:40]


def study_tokens(studied: Studied) -> Finding:
    """Shows the tokens that gain and lose most, in their context."""
    some = _tokens(studied)
    gain = some.mixed - some.lm
    helped = _different(studied, some, np.argsort(-gain, kind="stable"))
    # Wherever no neighbor votes for the token, the loss in nats is the same. So the lost
    # probability says which token the model knew best.
    lost = np.exp(some.lm) - np.exp(some.mixed)
    hurt = _different(studied, some, np.argsort(-lost, kind="stable"))
    passages = ["Most helped, by their gain in nats, each token once:", ""]
    passages += [_passage(studied, some, row) for row in helped]
    passages += ["", "Most hurt, by the probability that they lost, each token once:", ""]
    passages += [_passage(studied, some, row) for row in hurt]
    better = float((gain > 0).mean())
    most = -float(gain.min())
    limit = -math.log1p(-some.lmbda) if some.lmbda < 1.0 else math.inf
    rows = [("better", better), ("worse", 1.0 - better)]
    return Finding(
        "The tokens that gain and lose most",
        "Khandelwal et al. (2020), section 6, find that rare text gains most: names, facts, and "
        "near copies of the corpus.",
        f"{better:.0%} of the tokens become likelier. None loses more than {most:.2f} nats, and "
        f"none can lose more than {limit:.2f}, since the model's own share is 1 - λ.",
        None,
        ("tokens that become", "share"),
        rows,
        None,
        passages,
    )


def _gain(name: str, some: _Tokens, rows: Bools) -> tuple[str, int, float, float, float]:
    lm, mixed = float(some.lm[rows].mean()), float(some.mixed[rows].mean())
    return name, int(rows.sum()), math.exp(-lm), math.exp(-mixed), mixed - lm


def _gains(rows: list[tuple[str, int, float, float, float]], label: str) -> Plot:
    gains = [row[-1] for row in rows]
    return Plot("bars", [row[0] for row in rows], {"": gains}, label, "gain in nats a token")


def _different(studied: Studied, some: _Tokens, order: Ints) -> list[int]:
    """Returns the first rows of an order whose tokens all differ."""
    targets = studied.queries().targets.numpy()[some.rows]
    seen: dict[int, int] = {}
    for row in order.tolist():
        seen.setdefault(int(targets[row]), row)
        if len(seen) == _SHOWN:
            break
    return list(seen.values())


def _passage(studied: Studied, some: _Tokens, row: int) -> str:
    queries = studied.queries()
    gain, before_it, with_it = (
        some.mixed[row] - some.lm[row],
        *np.exp([some.lm[row], some.mixed[row]]),
    )
    here = int(some.rows[row])
    # The rows are in the order of the text. A document's first token has no row.
    same = queries.documents[max(0, here - _CONTEXT) : here] == queries.documents[here]
    before = queries.targets[max(0, here - _CONTEXT) : here][same].tolist()
    token = int(queries.targets[here])
    text = studied.tokenizer.decode([*before, token])
    word = studied.tokenizer.decode([token])
    start = text[: len(text) - len(word)] if text.endswith(word) else text
    shown = one_line(start).strip().replace("`", "'")
    marked = one_line(word).replace("`", "'").strip() or "␣"
    return f"- {before_it:.2g} → {with_it:.2g} ({gain:+.2f} nats): `{shown}` **`{marked}`**"
