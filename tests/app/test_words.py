"""The words of an answer as the browser draws them: colours, lines, spans and shares."""

import re
from dataclasses import replace

import pytest

from app.answers import answer, drawn, neighbor, token
from knn_logits.evidence.records import DocumentShare
from knn_logits_app import views
from knn_logits_app.session import Answer, Piece

NUMBER = re.compile(r"\d[\d.]*")


def contrast(one, other):
    """WCAG's ratio of two colors, as a browser computes them."""

    def light(color):
        parts = [float(part) / (1 if "srgb" in color else 255) for part in NUMBER.findall(color)]
        linear = [
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
        ]
        return 0.05 + sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    return max(light(one), light(other)) / min(light(one), light(other))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_more_the_memory_has_of_a_word_the_stronger_is_its_colour(drawing, scheme):
    shares = (0.05, 0.3, 0.6, 1.0)
    tokens = [token(" it", share, changed=changed) for changed in (False, True) for share in shares]
    page = drawing(views.frame({"knn": answer(*tokens)}, {}))
    page.evaluate("(scheme) => { document.documentElement.style.colorScheme = scheme; }", scheme)
    names = ["color", "backgroundColor", "borderBottomColor", "borderBottomWidth"]
    style = "(all, names) => all.map((one) => names.map((name) => getComputedStyle(one)[name]))"
    found = page.locator("#answer .kl-text [data-word]").evaluate_all(style, names)
    card = page.locator(".kl-answer").evaluate("(one) => getComputedStyle(one).backgroundColor")
    agreed, changed = found[:4], found[4:]
    for words in (agreed, changed):
        assert len({line for *_, line, _ in words}) == 4
        widths = [float(width.removesuffix("px")) for *_, width in words]
        assert widths == sorted(widths)
        assert widths[0] < widths[-1]
        assert all(contrast(line, card) >= 3 for *_, line, _ in words)
    assert {back for _, back, *_ in agreed} == {"rgba(0, 0, 0, 0)"}
    backs = [contrast(back, card) for _, back, *_ in changed]
    assert backs == sorted(backs)
    assert len(set(backs)) == 4
    assert all(contrast(ink, back) >= 4.5 for ink, back, *_ in changed)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_word_that_was_not_compared_is_gray_and_can_be_read(drawing, scheme):
    compared = replace(token(" it", 1.0, changed=True), verbatim=True)
    page = drawing(
        views.frame({"text": answer(compared, token(" by", 1.0, changed=True))}, {}, kind="explain")
    )
    page.evaluate("(scheme) => { document.documentElement.style.colorScheme = scheme; }", scheme)
    names = ["color", "backgroundColor"]
    style = "(all, names) => all.map((one) => names.map((name) => getComputedStyle(one)[name]))"
    words = page.locator("#answer .kl-text [data-word]")
    (ink, back), (gray, none) = words.evaluate_all(style, names)
    card = page.locator(".kl-answer").evaluate("(one) => getComputedStyle(one).backgroundColor")
    assert none == "rgba(0, 0, 0, 0)" != back
    assert 4.5 <= contrast(gray, card) < contrast(ink, card)


def test_an_agreed_word_has_a_line_and_an_own_one_has_nothing():
    found = drawn(token(" cover", 0.9), token(" it", 0.01))
    assert [look for _, look, _ in found["words"]] == ["kl-w kl-agreed", "kl-w"]
    assert found["headline"] == "The memory changed no word, and agreed to 1."


def test_tokens_become_words_with_the_share_of_their_weakest():
    pieces = [(" K", 1.0), ("-", 0.5), ("ix", 0.3), (".", 0.2), (" After", 0.4), ("", 0.35)]
    found = drawn(*(token(*one, changed=True) for one in pieces))
    shares = [(text, hint.split(": ")[1][:3]) for text, _, hint in found["words"]]
    assert shares == [("K-ix", "30%"), (".", "20%"), ("After", "35%")]
    assert found["headline"].startswith("The memory brought 2 of 2 words")


def test_a_changed_word_has_the_share_of_the_pieces_that_were_changed():
    """What follows them may be certain anyway, and says nothing against the memory."""
    whole, other = (neighbor(word=" K", after=after) for after in ("-96 is red.", "-11 is old."))
    found = drawn(token(" K", 0.9, [whole], changed=True), token("-96", 0.003, documents=[]))
    assert found["headline"] == "The memory brought 1 of 1 word."
    assert found["words"][0][2] == "brought by the memory: 90% by the memory"
    # A number that no passage has may be wrong.
    found = drawn(token(" K", 0.9, [other], changed=True), token("-96", 0.4))
    assert found["headline"] == "The memory changed no word: no passage speaks for this text."
    assert found["words"][0][1:] == ["kl-w", "no passage has the whole number: 40% by the memory"]
    found = drawn(token(" 96", 0.9, [neighbor(word=" 96")], elsewhere=True), kind="explain")
    elsewhere = "the passages with it are about something else: 90% by the memory"
    assert found["words"][0][1:] == ["kl-w", elsewhere]
    # A word that was generated is marked and counted.
    found = drawn(token(" 96", 0.9, [neighbor(word=" 96")], unlike=True, changed=True))
    assert found["words"][0][1] == "kl-w kl-changed kl-unlike"
    assert (
        found["headline"]
        == "The memory brought 1 of 1 word (1 dotted: the source may be about something else)."
    )


def test_a_word_that_the_memory_makes_less_likely_is_not_called_brought_by_it():
    ((_, _, hint),) = drawn(token(" cover", 0.3, p=0.4, p_lm=0.6))["words"]
    assert hint.startswith("the memory makes it less likely: 30%")


def test_an_answer_of_no_words_and_a_text_of_no_passage_say_so():
    assert drawn(token(" ", 0.9, changed=True))["headline"] == "No word was written."
    # It does not say that no passage has such a sentence, since few were looked at.
    same = replace(token(" Dig", 0.1), verbatim=True)
    for words, start in (
        ([], "Nothing was compared: the sentences are too short, or too different"),
        ([same], "The same in a passage: 2 of 4 words. Nothing is known of the gray words, which"),
    ):
        found = drawn(*words, token("."), token(" To"), token("."), token(" Go"), kind="explain")
        assert found["headline"].startswith(start)


def test_an_answer_that_grows_has_colours_and_no_sources():
    growing = Answer("Open the", words=(Piece(" cover", 0.9, True), Piece(" of", 0.9)), knn=True)
    looks = [look for _, look, _ in drawn(growing)["words"]]
    assert looks == ["kl-w kl-changed", "kl-w kl-agreed"]


def test_words_in_a_row_from_one_place_are_one_span():
    def from_place(text, entry, after, document="a"):
        one = neighbor(word=text, after=after, entry=entry, document=document, title=document)
        share = DocumentShare("manual", document, document, None, 0.9)
        return token(text, 0.9, [one], documents=[share], changed=True)

    found = drawn(
        from_place(" adjust", 10, " the front hose."),
        from_place(" the", 11, " front hose."),
        from_place(" front", 12, " hose."),
        from_place(" door", 40, " of it", "b"),
    )
    assert found["spans"] == ["adjust the front", "door"]


def test_control_characters_are_left_out(drawing):
    bad = "a\x00b\x1b[31mc\u202ed\ne"
    assert views.text(bad) == "ab[31mcd\ne"
    page = drawing(views.frame({"knn": answer(token(" cover"), prompt=bad)}, {}))
    assert page.locator(".kl-prompt").evaluate("(one) => one.textContent") == "ab[31mcd\ne"
