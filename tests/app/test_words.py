"""The words of an answer as the browser draws them: colours, lines, spans and shares."""

from dataclasses import replace

import pytest

from app.answers import answer, neighbor, shown, token, words
from knn_logits.evidence.records import DocumentShare
from knn_logits_app import views
from knn_logits_app.session import Answer, Piece


@pytest.mark.parametrize(("share", "level"), [(0.05, 1), (0.25, 2), (0.5, 3), (0.75, 4), (1.0, 4)])
def test_a_changed_word_has_a_colour_and_a_line_by_its_share(drawing, share, level):
    page = drawing(views.frame({"knn": answer(token(" cover", share, changed=True))}, {}))
    word = words(page)
    assert word.get_attribute("class") == f"kl-w kl-changed kl-l{level}"
    assert f"{share:.0%} by the memory" in word.get_attribute("aria-description")
    border = page.evaluate(
        "getComputedStyle(document.querySelector('#answer .kl-text .kl-w')).borderBottomWidth"
    )
    assert border == f"{level}px"


def test_an_agreed_word_has_a_thin_line_and_an_own_one_nothing(drawing):
    page = drawing(views.frame({"knn": answer(token(" cover", 0.9), token(" it", 0.01))}, {}))
    assert [one.get_attribute("class") for one in words(page).all()] == ["kl-w kl-agreed", "kl-w"]
    assert shown(page, ".kl-headline") == "The memory changed no word, and agreed to 1."


def test_tokens_become_words_with_the_share_of_their_weakest(drawing):
    pieces = [(" K", 1.0), ("-", 0.5), ("96", 0.3), (".", 0.2), (" After", 0.4), ("", 0.35)]
    page = drawing(views.frame({"knn": answer(*(token(*one, changed=True) for one in pieces))}, {}))
    assert [one.inner_text() for one in words(page).all()] == ["K-96", ".", "After"]
    titles = [one.get_attribute("aria-description") for one in words(page).all()]
    assert [one.split(": ")[1][:3] for one in titles] == ["30%", "20%", "35%"]
    assert shown(page, ".kl-headline").startswith("The memory changed 2 of 2 words")


def test_a_changed_word_has_the_share_of_the_pieces_that_were_changed(drawing):
    """What follows them may be certain anyway, and says nothing against the memory."""
    shares = [DocumentShare("manual", name, name, None, 0.009) for name in map(str, range(100))]
    pieces = [token(" K", 0.9, documents=shares, changed=True), token("-96", 0.003, documents=[])]
    page = drawing(views.frame({"knn": answer(*pieces)}, {}))
    assert shown(page, ".kl-headline") == "The memory changed 1 of 1 word."
    assert (
        words(page).get_attribute("aria-description") == "brought by the memory: 90% by the memory"
    )
    assert "90% of the probability of its piece “K” comes from the memory" in shown(
        page, ".kl-panel"
    )
    page.get_by_role("button", name="Close the sources").click()
    assert page.locator(".kl-docs [data-own]").inner_text().split() == [
        "the", "model", "itself", "10%",
    ]  # fmt: skip


def test_a_word_that_the_memory_makes_less_likely_is_not_called_brought_by_it(drawing):
    one = token(" cover", 0.3, p=0.4, p_lm=0.6)
    page = drawing(views.frame({"knn": answer(one)}, {}))
    assert (
        words(page)
        .get_attribute("aria-description")
        .startswith("the memory makes it less likely: 30%")
    )


def test_the_answer_without_knn_has_no_buttons(drawing):
    plain = Answer("Open the", words=(Piece(" cover", 0.0),), done=True, tokens=1, seconds=0.1)
    page = drawing(views.frame({"lm": plain}, {}))
    assert page.locator("#answer [role=button]").count() == 0
    assert page.locator(".kl-legend").count() == 0


def test_an_answer_grows_without_sources_until_it_is_whole(drawing):
    growing = Answer("Open the", words=(Piece(" cover", 0.9, True), Piece(" of", 0.9)), knn=True)
    page = drawing(views.frame({"knn": growing}, {}))
    assert page.locator(".kl-caret").count() == 1
    assert page.locator(".kl-panel").count() == 0
    found = page.locator(".kl-text .kl-w")
    assert [one.get_attribute("class") for one in found.all()] == [
        "kl-w kl-changed kl-l4", "kl-w kl-agreed",
    ]  # fmt: skip


def test_both_answers_are_a_diff_and_shared_words_are_grey(drawing):
    pieces = [" Then", " open", " the", " left", " cover", "."]
    alone = Answer("", words=tuple(Piece(one, 0.0) for one in pieces), done=True, tokens=6)
    told = ["", " open", " the", " red", " cover", "."]
    known = answer(*(token(one, 0.9, changed=one == " red") for one in told), prompt="")
    page = drawing(views.frame({"lm": alone, "knn": known}, {}))
    assert page.locator(".kl-side-lm .kl-same").all_inner_texts() == ["open", "the", "cover", "."]
    assert page.locator(".kl-side-knn .kl-same").all_inner_texts() == ["open", "the", "cover", "."]
    assert page.locator(".kl-side-knn .kl-w:not(.kl-same)").all_inner_texts() == ["red"]


def test_words_in_a_row_from_one_place_are_one_span(drawing):
    def from_place(text, entry, after, document="a"):
        one = neighbor(word=text, after=after, entry=entry, document=document, title=document)
        share = DocumentShare("manual", document, document, None, 0.9)
        return token(text, 0.9, [one], documents=[share], changed=True)

    tokens = [
        from_place(" adjust", 10, " the front hose."),
        from_place(" the", 11, " front hose."),
        from_place(" front", 12, " hose."),
        from_place(" door", 40, " of it", "b"),
    ]
    page = drawing(views.frame({"knn": answer(*tokens)}, {}))
    assert page.locator(".kl-span").all_inner_texts() == ["adjust the front"]
    words(page).nth(1).click()
    assert page.locator(".kl-panel mark").inner_text() == "adjust the front"
    assert page.locator(".kl-panel mark b").inner_text() == "the"
    assert "hose." in shown(page, ".kl-panel blockquote")
    words(page).nth(3).click()
    assert page.locator(".kl-panel mark").inner_text() == "door"


def test_many_line_breaks_take_the_room_of_two(drawing):
    tokens = [token(" one", 0.9, changed=True), token("\n" * 50, 0.9), token("two", 0.9)]
    page = drawing(views.frame({"knn": answer(*tokens)}, {}))
    text = page.locator(".kl-side-knn .kl-text").evaluate("(one) => one.textContent")
    assert text.endswith("one\n\ntwo")
    assert words(page).count() == 2


def test_control_characters_are_left_out(drawing):
    bad = "a\x00b\x1b[31mc\u202ed\ne"
    assert views.text(bad) == "ab[31mcd\ne"
    page = drawing(views.frame({"knn": answer(token(" cover"), prompt=bad)}, {}))
    assert page.locator(".kl-prompt").evaluate("(one) => one.textContent") == "ab[31mcd\ne"


def test_an_answer_says_how_fast_it_was(drawing):
    one = answer(token(" cover"), token(" of"), token(" it"))
    assert "3 tokens, 6 a second" in shown(drawing(views.frame({"knn": one}, {})))
    slow = shown(drawing(views.frame({"knn": replace(one, seconds=12.0)}, {})))
    assert "0.25 a second" in slow
    page = drawing(views.frame({"text": one}, {}, kind="explain"))
    assert "read in one pass" in shown(page)
