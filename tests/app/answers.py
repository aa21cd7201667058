"""Makes answers by hand, and reads them where they are drawn: in Node.js, or in a browser."""

import json
import subprocess

import pytest

from knn_logits import Trace
from knn_logits.evidence.records import (
    Candidate,
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
)
from knn_logits_app import views
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


def answer(*tokens, prompt="Open the", contradictions=()):
    return Answer(
        prompt,
        words=tuple(Piece(one.token, one.influence) for one in tokens),
        knn=True,
        done=True,
        trace=Trace([SequenceTrace(prompt, list(tokens), contradictions=list(contradictions))]),
        tokens=len(tokens),
        seconds=0.5,
    )


def words(page):
    """The words that a click opens."""
    return page.locator("#answer .kl-w[role=button]")


def shown(page, place="#answer"):
    return page.locator(place).inner_text()


# The parts of a browser that the scripts use when they are loaded.
BROWSER = """
globalThis.window = globalThis;
globalThis.addEventListener = () => {};
globalThis.location = { search: "" };
globalThis.document = { addEventListener: () => {}, createElement: (name) => ({
  name, parts: [], append(...all) { this.parts.push(...all); }, setAttribute() {},
}) };
globalThis.Node = Object;
globalThis.plain = (one) => (Array.isArray(one) ? one.map(plain).join("")
  : one.name ? `<${one.name}>${one.parts.map(plain).join("")}</>` : one);
"""


class Node:
    """Runs the page's scripts without a browser, in the Node.js that Playwright brings."""

    def evaluate(self, function, *given):
        script = views.script()
        program = f"{BROWSER}\n{script}\nconst call = {function};\n"
        program += 'const given = JSON.parse(require("fs").readFileSync(0, "utf-8"));\n'
        program += "console.log(JSON.stringify(call(...given)));"
        node, _ = pytest.importorskip("playwright._impl._driver").compute_driver_executable()
        done = subprocess.run(
            [node, "-e", program], input=json.dumps(given), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


DRAWN = """(frame) => {
  const data = JSON.parse(frame), side = Object.values(data.sides).at(-1);
  const known = knnLogits.read(side);
  const shown = known.words.filter((one) => one.text);
  return {
    words: shown.map((one) => [one.text, knnLogits.look(one), knnLogits.hint(one)]),
    spans: known.spans.map((one) => one.words.map((each) => each.whole).join("").trim()),
    headline: side.trace ? plain(knnLogits.headline(data, known)).replace(/<.*?>/g, "") : null,
  };
}"""


def drawn(*tokens, kind="write", **given):
    """Returns an answer as the scripts read it: words with their classes, spans and headline."""
    one = tokens[0] if isinstance(tokens[0], Answer) else answer(*tokens, **given)
    return Node().evaluate(
        DRAWN, views.frame({"text" if kind == "explain" else "knn": one}, {}, kind=kind)
    )
