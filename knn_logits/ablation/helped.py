"""Studies which tokens the neighbors help, and how much the best λ for each token would gain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from knn_logits.ablation.bench import Studied
from knn_logits.ablation.finding import Finding, Plot
from knn_logits.ablation.measuring import exact_search, log_p_knn, measure_base
from knn_logits.arrays import Bools, Floats, Ints
from knn_logits.datastore.files import write_arrays
from knn_logits.datastore.reading import read_arrays
from knn_logits.printable import one_line

_FREQUENCIES = (0, 1, 10, 100, 1000, 10_000)
_POSITIONS = (1, 8, 32, 128, 512)
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
    """

    rows: Ints
    lm: Floats
    knn: Floats
    mixed: Floats
    lmbda: float


def _tokens(studied: Studied) -> _Tokens:
    base, queries = measure_base(studied), studied.queries()
    path = studied.work / "tokens.safetensors"
    if not path.exists():
        studied.progress("tokens", 0, None)
        found = log_p_knn(
            queries, exact_search(studied)(), "l2", base.best.k, base.best.temperature
        )
        write_arrays(path, {"log_p_knn": found.numpy()}, {})
    knn = read_arrays(path)[0]["log_p_knn"].astype(np.float64)
    rows = torch.nonzero(queries.second)[:, 0].numpy()
    lm, lmbda = queries.log_p_lm.double().numpy()[rows], base.best.lmbda
    with np.errstate(divide="ignore"):
        mixed = np.logaddexp(lm + np.log1p(-lmbda), knn[rows] + np.log(lmbda))
    return _Tokens(rows, lm, knn[rows], mixed, lmbda)


def study_oracle(studied: Studied) -> Finding:
    """Computes the perplexity with the best λ for each token."""
    some, base = _tokens(studied), measure_base(studied)
    oracle = math.exp(-float(np.maximum(some.lm, some.knn).mean()))
    mixed = math.exp(-float(some.mixed.mean()))
    gap = 1.0 - oracle / mixed
    rows = [("model alone", base.lm), (f"one λ, {some.lmbda:g}", mixed), ("oracle λ", oracle)]
    return Finding(
        "A λ that is right for each token",
        "Drozdov et al. (2022) and He et al. (2021) find that the best λ for each token is much "
        "better than one λ for all, and that a rule without knowledge of the token gains a part "
        "of this.",
        f"If each token takes the better of model and neighbors, perplexity is {oracle:.1f} in "
        f"place of {mixed:.1f} ({-gap:+.1%}).",
        gap > 0.05,
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
    gains = np.array([row[-1] for row in rows])
    often = np.average(gains[-2:], weights=[row[1] for row in rows[-2:]])
    rarely = np.average(gains[:-2], weights=[row[1] for row in rows[:-2]]) if rows[2:] else 0.0
    return Finding(
        "Which tokens gain, by their frequency",
        "Nishida et al. (2025, arXiv 2503.22426) find that the neighbors help frequent tokens "
        "more than rare ones.",
        f"The mean log-likelihood of the most frequent tokens grows by {often:.2f} nats, and that "
        f"of the others by {rarely:.2f}.",
        bool(often > rarely),
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
    best = rows[int(np.argmax(gains))][0]
    return Finding(
        "Which tokens gain, by their place in the document",
        "None of the papers that this report follows says how the gain depends on the place.",
        f"Tokens at the places {best} gain most, {max(gains):.2f} nats. Those at {rows[0][0]} gain "
        f"{gains[0]:.2f}.",
        None,
        ("place", "tokens", "model", "mixture", "gain in nats"),
        rows,
        _gains(rows, "place in the document"),
    )


def study_tokens(studied: Studied) -> Finding:
    """Shows the tokens that gain and lose most, in their context."""
    some = _tokens(studied)
    gain = some.mixed - some.lm
    order = np.argsort(-gain, kind="stable")
    helped, hurt = order[:_SHOWN], order[::-1][:_SHOWN]
    passages = ["Most helped:", ""]
    passages += [_passage(studied, some, int(row), float(gain[row])) for row in helped]
    passages += ["", "Most hurt:", ""]
    passages += [_passage(studied, some, int(row), float(gain[row])) for row in hurt]
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


def _passage(studied: Studied, some: _Tokens, row: int, gain: float) -> str:
    queries = studied.queries()
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
    return f"- {gain:+.2f} nats: `{shown}` **`{marked}`**"
