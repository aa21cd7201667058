"""No regular expression takes more than linear time, whatever text a stranger wrote."""

import ast
import itertools
import re
from pathlib import Path

import pytest
from growth import grows_faster, seconds

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for folder in ("knn_logits", "app/knn_logits_app", "app/knn_logits_serve")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
WAYS = ("match", "fullmatch", "search", "finditer", "findall", "split", "sub", "subn")
# Patterns whose texts are short, with what bounds them.
BOUNDED = {
    "knn_logits/cli/loading.py": "an argument of the command line",
    "knn_logits/evidence/quotation.py": "the tokens that are compared, at most 48",
    "knn_logits/lab/legacy.py": "a file's name",
}
# A quadratic pattern takes sixteen times as long for four times the text, a linear one four times.
SHORT, LONG, MOST = 250, 1000, 9
# Shorter times are not measured well.
SECONDS = 0.001


def used(path):
    """Yields each pattern of a file, its flags, and a method that it is called by."""
    tree = ast.parse(path.read_text())
    compiled = {}

    def literal(call):
        flags = eval(ast.unparse(call.args[-1]), {"re": re}) if len(call.args) > 1 else 0
        return ast.literal_eval(call.args[0]), flags

    for node in ast.walk(tree):
        pairs = []
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if both else [(target, value)]
        for name, value in pairs:
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "re.compile":
                try:
                    compiled[ast.unparse(name)] = literal(value)
                except ValueError:
                    compiled[ast.unparse(name)] = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        way, owner = node.func.attr, ast.unparse(node.func.value)
        if way not in WAYS:
            continue
        if owner == "re" and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value, 0, way
        elif compiled.get(owner):
            yield *compiled[owner], way


def texts(pattern):
    """Units that a pattern may read again and again, and what may stand around them."""
    shown = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    signs = list(dict.fromkeys(sign for sign in shown if sign.isprintable()))
    words = re.findall(r"[A-Za-z]{3,}|</?\w+", shown)[:4]
    few = list(dict.fromkeys([" ", "\n", "a", "1", ".", *signs]))[:9]
    pairs = [one + two for one, two in itertools.product(few, repeat=2)]
    for unit in dict.fromkeys([*" \n\ta1A_-.\"'<>#*|[]()", *signs, *words, *pairs]):
        for before, after in (("", ""), ("a", "!"), ("", "\1"), (f"{unit[:1]}\n", "\1")):
            yield lambda size, unit=unit, a=before, z=after: a + (unit * size)[:size] + z


def applied(pattern, way, text):
    text = text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text
    matches = pattern.sub("", text) if way.startswith("sub") else getattr(pattern, way)(text)
    if way == "finditer":
        for _ in matches:
            pass


def grows(pattern, way, make):
    """Whether the time for a text grows with more than its length."""

    def run(size):
        applied(pattern, way, make(size))

    return seconds(lambda: run(LONG)) >= SECONDS and grows_faster(
        run, SHORT, LONG, most=MOST, least=SECONDS / MOST
    )


@pytest.mark.parametrize(
    ("pattern", "way"), [(r"\s*(x)\s*y", "search"), (r"[.!?]+\s", "split"), (r"\d*#", "sub")]
)
def test_what_is_not_linear_is_found(pattern, way):
    pattern = re.compile(pattern)
    assert any(grows(pattern, way, make) for make in texts(pattern.pattern))


def test_the_time_of_every_pattern_grows_with_the_length_of_a_text():
    slow, number = [], 0
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        for pattern, flags, way in dict.fromkeys(used(path)):
            number += 1
            compiled = re.compile(pattern, flags)
            for make in texts(pattern):
                if name not in BOUNDED and grows(compiled, way, make):
                    slow.append(f"{name}: {way} of {pattern!r} on {make(12)!r}")
                    break
    assert number > 50, "patterns are not found any more"
    assert slow == []
