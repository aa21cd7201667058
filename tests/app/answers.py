"""Makes answers by hand, and reads them where they are drawn."""

from knn_logits import Trace
from knn_logits.evidence.records import (
    Candidate,
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
)
from knn_logits_app.session import Answer, Piece

HOSTILE = "<img src=x onerror=alert(1)>\"'&`${alert(1)}{{value}}"


def neighbor(**given):
    content = {
        "before": "The winch", "word": " cover", "after": " is red.", "document": "d1",
        "title": "Winches", "uri": None, "store": "manual", "entry": 3, "weight": 0.5,
        "distance": 2.0, "influence": 0.4,
    }  # fmt: skip
    return NeighborTrace(**{**content, **given})


def token(text, influence=0.8, neighbors=(), *, changed=False, **given):
    """Makes a token. By default its documents are those of its neighbors."""
    likeliest = [Candidate(" cover", 7, 0.5, 0.1, 0.9)]
    known = {"p": 0.5, "p_lm": 0.1, "p_knn": 0.9, "lmbda": 0.5, "candidates": likeliest, **given}
    if changed:
        known["by_model"] = Rival(" lid", 0.6)
    known.setdefault("documents", [
        DocumentShare(one.store, one.document, one.title, one.uri, one.influence)
        for one in neighbors
    ])  # fmt: skip
    return TokenTrace(text, 7, influence=influence, neighbors=list(neighbors), **known)


def answer(*tokens, prompt="Open the"):
    return Answer(
        prompt,
        words=tuple(Piece(one.token, one.influence) for one in tokens),
        knn=True,
        done=True,
        trace=Trace([SequenceTrace(prompt, list(tokens))]),
        tokens=len(tokens),
        seconds=0.5,
    )


def words(page):
    """The words that a click opens."""
    return page.locator("#answer .kl-w[role=button]")


def shown(page, place="#answer"):
    return page.locator(place).inner_text()
