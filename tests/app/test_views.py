"""Answers as HTML: nothing from outside is more than text, and the shares are said twice."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from knn_logits import (
    Candidate,
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
    Trace,
)
from knn_logits_app import markup, panels, views
from knn_logits_app.session import Answer
from knn_logits_app.words import words_of

HOSTILE = "<img src=x onerror=alert(1)>\"'&`${alert(1)}{{value}}"


def neighbor(**given):
    content = {
        "before": "The winch ", "word": " cover", "after": " is red.", "document": "d1",
        "title": "Winches", "uri": None, "store": "manual", "entry": 3, "weight": 0.5,
        "distance": 2.0, "influence": 0.4,
    }  # fmt: skip
    return NeighborTrace(**{**content, **given})


def token(text, influence=0.8, neighbors=(), **given):
    likeliest = [Candidate(" cover", 7, 0.5, 0.1, 0.9)]
    known = {"p": 0.5, "p_lm": 0.1, "p_knn": 0.9, "lmbda": 0.5, "candidates": likeliest, **given}
    return TokenTrace(text, 7, influence=influence, neighbors=list(neighbors), **known)


def answer(*tokens, prompt="Open the"):
    return Answer(
        prompt,
        tuple((one.token, one.influence) for one in tokens),
        knn=True,
        done=True,
        trace=Trace([SequenceTrace(prompt, list(tokens))]),
        tokens=len(tokens),
        seconds=0.5,
    )


class Elements(HTMLParser):
    """Names and attributes of all elements, and the text."""

    def __init__(self, html):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_no_text_from_outside_becomes_an_element_or_an_attribute():
    hostile = neighbor(
        before=HOSTILE, word=HOSTILE, after=HOSTILE, document=HOSTILE, title=HOSTILE,
        uri="javascript:alert(1)//" + HOSTILE, store=HOSTILE, source=HOSTILE,
    )  # fmt: skip
    shown = answer(
        token(
            " " + HOSTILE,
            neighbors=[hostile],
            candidates=[Candidate(HOSTILE, 7, 0.5, 0.1, 0.0)],
        ),
        prompt=HOSTILE,
    )
    html = views.answers_html({"lm": shown, "knn": shown})
    elements = Elements(html)
    known = re.findall(
        r"\w+",
        "a article b blockquote button details div h2 h3 h4 i li mark ol p section span summary "
        "table tbody td th thead tr ul",
    )
    assert {tag for tag, _ in elements.found} <= set(known)
    assert not [1 for _, attrs in elements.found for name in attrs if name.startswith("on")]
    assert not [1 for tag, _ in elements.found if tag == "a"]
    assert elements.text.count("onerror=alert(1)") > 5
    trace = next(attrs["data-trace"] for _, attrs in elements.found if "data-trace" in attrs)
    assert json.loads(trace)["sequences"][0]["prompt"] == HOSTILE


@pytest.mark.parametrize(
    ("uri", "linked"),
    [
        ("https://example.org/a?b=1&c=2", True),
        ("HTTP://example.org", True),
        ("javascript:alert(1)", False),
        ("data:text/html,<script>", False),
        (" javascript:alert(1)", False),
        ("//example.org", False),
        ("https://", False),
        ("file:///etc/passwd", False),
        ("http://[broken", False),
        ("folder/file.txt", False),
        (None, False),
    ],
)
def test_only_web_addresses_are_links(uri, linked):
    html = markup.link(uri)
    assert bool(html) is linked
    if linked:
        (_, attrs), *_ = Elements(html).found
        assert attrs["href"] == uri
        assert "noopener" in attrs["rel"]


@pytest.mark.parametrize(
    ("share", "level"), [(0.0, 0), (0.049, 0), (0.05, 1), (0.25, 2), (0.5, 3), (0.75, 4), (1.0, 4)]
)
def test_a_level_is_a_colour_and_the_thickness_of_a_line(share, level):
    assert markup.level(share) == level
    html = views.answers_html({"knn": answer(token(" cover", share))})
    assert f'class="kl-w kl-l{level}"' in html
    assert f"{share:.0%} by the memory" in html.replace("under 1%", "0%")
    css = (views.__file__.replace("views.py", "assets/app.css"),)
    rules = open(css[0], encoding="utf-8").read()  # noqa: PTH123, SIM115
    for one in range(1, 5):
        assert re.search(rf"\.kl-l{one} {{[^}}]*border-bottom: {one}px", rules)


def test_tokens_become_words_with_the_share_of_their_weakest():
    pieces = [(" K", 1.0), ("-", 0.5), ("96", 0.0), (".", 0.2), (" After", 0.4), ("", 0.0)]
    words = words_of(pieces)
    assert [(one.space, one.text) for one in words] == [(" ", "K-96"), ("", "."), (" ", "After")]
    assert words[0].share == 0.0
    assert words[2].tokens == (4, 5)


def test_a_word_shows_the_documents_that_did_most_for_all_of_it():
    first = neighbor(document="a", title="A", influence=0.3, word=" K", after="-96 is red.")
    second = neighbor(document="b", title="B", influence=0.6, word=" K", after="-11.")
    weak = neighbor(document="c", title="C", influence=0.004)
    pieces = [
        token(" K", 0.904, [second, first, weak]),
        token("-96", 0.8, [neighbor(document="a", title="A", influence=0.8, word="-96")]),
    ]
    html = views.answers_html({"knn": answer(*pieces)})
    assert "<mark>K-96</mark> is red." in html
    assert "30% of the word" in html
    assert "<b>B</b>" not in html
    assert 'role="button" tabindex="0" aria-expanded="true"' in html


def test_pieces_of_different_documents_are_no_source_of_the_word():
    pieces = [
        token(" K", documents=[DocumentShare("s", "a", "A", None, 0.8)]),
        token("-96", documents=[DocumentShare("s", "b", "B", None, 0.8)]),
    ]
    html = views.answers_html({"knn": answer(*pieces)})
    assert "none of them says the word" in html
    assert "<b>A</b>" not in html


def test_documents_beyond_the_third_are_counted():
    documents = [DocumentShare("s", name, name, None, 0.2) for name in "ABCDE"]
    html = views.answers_html({"knn": answer(token(" K", 1.0, documents=documents))})
    assert "2 more documents, 40%" in html


def test_a_contradicted_word_says_what_the_memory_says():
    rival = Rival(" straighten", 0.999, DocumentShare("s", "d", "Error E941", None, 0.999))
    against = token(" bend", 0.0, p=4e-7, p_lm=8e-7, p_knn=0.0, by_memory=rival)
    html = views.answers_html({"text": answer(against)})
    assert "The memory says <b>straighten</b> here" in html
    assert "Error E941" in html
    assert "the model’s own" not in html
    assert 'class="kl-w kl-l0 kl-not"' in html


def test_a_passage_of_a_pair_is_shown_with_its_source():
    long = "The winch is red. " * 40
    for source, shown in (
        (None, ""),
        ("The winch.", "The winch."),
        (long, "The winch is red. The"),
    ):
        html = views.answers_html(
            {"knn": answer(token(" cover", neighbors=[neighbor(source=source)]))}
        )
        assert ("kl-read" in html) is bool(source)
        assert shown in html
    panels = html.split("kl-panels")[1]
    assert panels.count("winch is red") < 20
    assert " …</p>" in panels


def test_a_word_without_a_vote_says_so():
    html = views.answers_html({"knn": answer(token(" cover", 0.0))})
    assert "the model’s own" in html
    assert 'aria-expanded="true"' not in html


def test_the_answer_without_knn_has_no_buttons():
    plain = Answer("Open the", ((" cover", 0.0),), done=True, tokens=1, seconds=0.1)
    html = views.answers_html({"lm": plain})
    assert "role=" not in html
    assert "kl-legend" not in html


def test_an_answer_grows_without_sources_until_it_is_whole():
    html = views.answers_html({"knn": Answer("Open the", ((" cover", 0.9),), knn=True)})
    assert "kl-caret" in html
    assert "kl-panel" not in html
    assert 'class="kl-w kl-l4"' in html


def test_control_characters_are_left_out():
    assert markup.text("a\x00b\x1b[31mc\u202ed\ne") == "ab[31mcd\ne"


@pytest.mark.parametrize("share", [None, 0.0, 1e-12, 0.3, 1.0])
def test_bars_say_their_number(share):
    html = panels._bar(share, "knn")
    assert ("–" if share is None else "width:") in html


def test_progress_without_a_total_is_open():
    assert "value" not in views.progress_html("keys", 3, None)
    assert 'value="3" max="9"' in views.progress_html("keys", 3, 9)


def test_bars_are_of_the_mixture_first_and_say_what_it_is():
    others = [Candidate(" cover", 7, 0.5, 0.1, 0.9), Candidate("x", 8, 0.2, 1, 0)]
    one = answer(token(" cover", candidates=others))
    html = views.answers_html({"knn": one})
    heads = re.findall(r'<th scope="col">([^<]*)</th>', html)
    assert heads == ["candidate", "p, together", "p_LM, model", "p_kNN, neighbors"]
    row = re.search(r"cover</th>(.*?)</tr>", html)[1]
    assert re.findall(r"<span>([0-9.]+)</span>", row) == ["0.500", "0.100", "0.900"]


def test_a_speed_says_how_the_words_came():
    one = answer(token(" cover"), token(" of"), token(" it"))
    drafted = replace(one, passes=2)
    both = views.answers_html({"lm": one, "knn": drafted})
    assert both.count("both texts at once") == 2
    assert "6 a second: written one by one, both" in both
    assert "6 a second: 2 passes of the model, drafted from the memory, both" in both
    alone = views.answers_html({"knn": replace(one, passes=1)})
    assert "1 pass of the model, drafted" in alone
    assert "at once" not in alone
    assert "one by one" in views.answers_html({"knn": replace(one, passes=3)})
    assert "read in one pass" in views.answers_html({"text": one})
