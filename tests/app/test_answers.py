"""Answers as the browser draws them: nothing from outside is more than text."""

from dataclasses import replace

from app.answers import HOSTILE, Node, answer, neighbor, shown, token, words
from knn_logits.evidence.records import Candidate, Contradiction, DocumentShare, Rival
from knn_logits_app import views
from knn_logits_app.session import Answer, Piece


def test_no_text_from_outside_becomes_an_element_or_an_attribute(drawing):
    hostile = neighbor(
        before=HOSTILE, word=HOSTILE, after=HOSTILE, document=HOSTILE, title=HOSTILE,
        uri="javascript:alert(1)//" + HOSTILE, store=HOSTILE, source=HOSTILE,
    )  # fmt: skip
    share = DocumentShare(HOSTILE, HOSTILE, HOSTILE, hostile.uri, 0.8)
    rival = Rival(HOSTILE, 0.99, share, 3)
    contradictions = [Contradiction(HOSTILE, place, rival) for place in (None, 1)]
    candidates = [Candidate(HOSTILE, 7, 0.5, 0.1, 0.0)]
    shown = answer(
        token(HOSTILE, neighbors=[hostile], documents=[share], candidates=candidates),
        token(" bad", 0.0, p=1e-9, by_memory=rival, candidates=candidates),
        prompt=HOSTILE,
        contradictions=contradictions,
    )
    frame = views.frame({"lm": shown, "knn": shown}, {}, named=HOSTILE)
    assert "<" not in frame
    page = drawing(frame)
    for place in range(words(page).count()):
        words(page).nth(place).click()
        assert page.locator("#answer a").count() == 0
        names = page.evaluate(
            """[...document.querySelectorAll('#answer *')].map((one) => one.tagName)"""
        )
        known = (
            "A ARTICLE ASIDE B BLOCKQUOTE BUTTON CODE DETAILS DIV H2 H3 H4 I LI MARK OL P SECTION "
            "SPAN SUMMARY TABLE TBODY TD TH THEAD TR UL"
        )
        assert set(names) <= set(known.split())
        assert page.evaluate(
            """[...document.querySelectorAll('#answer *')].flatMap((one) => [...one.attributes])
               .filter((one) => one.name.startsWith('on')).length"""
        ) == 0  # fmt: skip
    assert page.locator("#answer").inner_text().count("onerror=alert(1)") > 3


def test_a_word_shows_the_documents_that_did_most_for_all_of_it(drawing):
    first = neighbor(document="a", title="A", influence=0.3, word=" K", after="-96 is red.")
    second = neighbor(document="b", title="B", influence=0.6, word=" K", after="-11.")
    pieces = [
        token(
            " K", 0.904, [second, first], changed=True,
            documents=[
                DocumentShare("s", "b", "B", None, 0.6), DocumentShare("s", "a", "A", None, 0.3),
            ],
        ),
        token("-96", 0.8, documents=[DocumentShare("s", "a", "A", None, 0.8)]),
    ]  # fmt: skip
    page = drawing(views.frame({"knn": answer(*pieces)}, {}))
    assert words(page).get_attribute("aria-expanded") == "true"
    panel = shown(page, ".kl-panel")
    assert "-96 is red." not in panel  # the passage is of a store of another name,
    assert "No document gave the whole word, only pieces of it." in panel
    same = [token(" K", 0.904, [first], changed=True), pieces[1]]
    same[0].documents[:] = [DocumentShare("manual", "a", "A", None, 0.3)]
    same[1].documents[:] = [DocumentShare("manual", "a", "A", None, 0.8)]
    page = drawing(views.frame({"knn": answer(*same)}, {}))
    assert page.locator(".kl-panel mark").inner_text() == "K-96"
    assert page.locator(".kl-panel blockquote").inner_text() == "The winch K-96 is red."
    assert page.locator(".kl-panel .kl-doc b").all_inner_texts() == ["A"]


def test_a_word_beside_a_quoted_passage_says_what_the_passage_has(drawing):
    document = DocumentShare("s", "d", "Error E941", None, 0.001)
    named = {"store": "s", "document": "d", "title": "Error E941, page 3"}
    passage = neighbor(before="First of all", word=" straighten the cover", **named)
    rival = Rival(" straighten the cover", 0.001, document, 17, passage, length=3)
    against = [
        token(word, 0.0, p=0.2, p_lm=0.2, p_knn=0.0, by_memory=rival) for word in (" bend", " it")
    ]
    found = [Contradiction(" bend it", 1, rival)]
    text = answer(token(" to", 0.9), *against, contradictions=found)
    page = drawing(views.frame({"text": text}, {}, kind="explain"))
    listed = "Your text: bend it · Source: straighten the cover\nError E941, page 3"
    assert shown(page, ".kl-differences").startswith(listed)
    assert shown(page, ".kl-headline") == (
        "1 difference in 2 of 4 words that were compared with a passage. Nothing is known of "
        "the gray words, which were not compared."
    )
    said = "A passage says straighten the cover in a sentence like this one:"
    assert shown(page, ".kl-panel .kl-against p").startswith(said)
    # The passage comes first, with its place and all of its words, and no other document beside it.
    assert shown(page, ".kl-panel .kl-against .kl-doc b") == "Error E941, page 3"
    assert shown(page, ".kl-panel .kl-against mark") == "straighten the cover"
    assert page.locator(".kl-panel .kl-sources").count() == 0
    assert page.locator(".kl-docs [data-document]").count() == 0
    # Nothing predicts the first word, which is compared with the next one.
    text = answer(*against, prompt="Never", contradictions=found)
    page = drawing(views.frame({"text": text}, {}, kind="explain"))
    assert shown(page, ".kl-headline").startswith("1 difference in all 3 words")
    # A word of a prompt has no panel, and is marked where it stands.
    found = [Contradiction("hill", None, rival), Contradiction("the inn is", 0, rival)]
    prompt = "No hill, a hill is the inn"
    text = answer(token(" is", 0.9), prompt=prompt, contradictions=found)
    page = drawing(views.frame({"knn": text}, {}))
    assert shown(page, ".kl-differences").startswith("This text: hill · Source: straighten")
    assert page.locator(".kl-differences .kl-link").count() == 1
    assert page.locator(".kl-prompt .kl-not").all_inner_texts() == ["hill", "the inn"]
    assert shown(page, ".kl-prompt") == prompt


def test_a_document_is_not_named_after_the_section_of_its_first_passage(drawing):
    page_3 = neighbor(title="Winches, page 3")
    share = DocumentShare("manual", "d1", "Winches", None, 0.8)
    cover = token(" cover", 0.8, [page_3], documents=[share], changed=True)
    page = drawing(views.frame({"knn": answer(cover)}, {}))
    assert shown(page, ".kl-docs [data-document] .kl-name") == "Winches"
    assert shown(page, ".kl-panel .kl-doc b") == "Winches, page 3"
    # Signs and blanks have no part in its share, and alone they have no list of shares.
    signs = [replace(cover, token=text, influence=0.2) for text in (".", "\n")]
    for tokens, shares in (([cover, *signs], ["80%", "20%"]), (signs, [])):
        page = drawing(views.frame({"knn": answer(*tokens)}, {}))
        assert page.locator(".kl-docs .kl-share").all_text_contents() == shares


def test_all_numbers_of_a_panel_are_of_one_piece_of_the_word(drawing):
    """The memory changed two pieces of this word, and the others are the model's own."""
    passage = neighbor(word="l", after="ets", influence=0.6)
    shares = {" pal": 0.01, "l": 0.6, "et": 0.8, "s": 0.3}
    pieces = [
        token(
            text, share, [passage] if share > 0.1 else [], changed=share > 0.5, lmbda=share / 2,
            p_lm=(1 - share) / 2, candidates=[Candidate(f"{text}?", 8, 0.5, 0.1, 0.9)],
        )
        for text, share in shares.items()
    ]  # fmt: skip
    turns = tuple([("from", 0.9, f"{text}!")] for text in shares)
    page = drawing(views.frame({"knn": replace(answer(*pieces), turns=turns)}, {}))
    assert shown(page, ".kl-head p") == (
        "60% of the chance of its part “l” comes from the memory: with it the chance is 50%, and "
        "with the model alone 20%."
    )
    assert shown(page, ".kl-with") == "Memory strength: 30%."
    assert shown(page, ".kl-turns") == "From a memory strength of 90% on it says “l!”."
    assert shown(page, ".kl-nums") == "60% of its part “l”"
    assert page.locator(".kl-bars tbody th").all_inner_texts() == ["l?"]


def test_the_headline_is_true_of_both_texts(drawing):
    def headline(mine, other):
        alone = Answer("It is", tuple(Piece(text, 0.0) for text in other), done=True)
        page = drawing(views.frame({"lm": alone, "knn": answer(*mine, prompt="It is")}, {}))
        return shown(page, ".kl-headline")

    alone = ["a", " 100", "%", " guarantee", "."]
    # The memory decided between two numbers that no passage has.
    number = token(" 20", 0.1, [neighbor(word=" 40")], changed=True)
    mine = [token(" a", 0.01), number, token("%", 0.01), token(" refund", 0.01)]
    differ = "The texts differ from “20%” on"
    assert headline(mine, [" a", *alone[1:]]) == f"{differ}, but the memory brought no word."
    agreed = [*mine, token(" of", 0.9)]
    end = "the memory brought no word, and agreed to 1."
    assert headline(agreed, [" a", *alone[1:]]) == f"{differ}, but {end}"
    # One text may go on where the other ends, or differ in a sign only.
    own = [token(text, 0.01) for text in (" one", " two")]
    assert "from “three” on" in headline(own, [" one", " two", " three"])
    assert "from “two” on" in headline(own, [" one"])
    assert "from “.” on" in headline(own, [" one", " two", "."])
    assert (
        headline(own, [" one", " two"])
        == "The memory changed no word: no passage speaks for this text."
    )
    # Sampling may draw the same text from both distributions.
    drawn = [token(" one", 0.9, changed=True), token(" two", 0.9)]
    assert headline(drawn, [" one", " two"]) == "The memory changed no word, and agreed to 1."
    assert headline(drawn, [" no", " two"]) == (
        "The texts differ from “one” on: the memory brought 1 of 2 words, and agreed to 1."
    )


def test_a_text_that_was_stopped_differs_only_in_what_it_has(drawing):
    own = [" The", " pump", " is", " blue"]

    def headline(mine, other, stopped=""):
        """The headline of the first words of two texts, of which one or both were stopped."""
        alone = Answer("", tuple(Piece(text, 0.0) for text in other), done=True)
        knn = answer(*(token(text, 0.01 if text in own else 0.9, changed=True) for text in mine))
        sides = {
            side: replace(one, stopped="stopped" if side in stopped else None)
            for side, one in {"lm": alone, "knn": knn}.items()
        }
        return shown(drawing(views.frame(sides, {})), ".kl-headline")

    assert (
        headline(own[:2], own, "knn")
        == "The memory changed no word: no passage speaks for this text."
    )
    assert (
        headline(own, [" The", " pu"], "lm knn")
        == "The memory changed no word: no passage speaks for this text."
    )
    assert headline([*own[:3], " red"], own[:2], "lm") == "The memory brought 1 of 4 words."
    red = "The texts differ from “red” on: the memory brought 2 of 5 words."
    assert headline([*own[:3], " red", " now"], [*own, " too"], "lm") == red
    # A blank is no difference, and no word to name.
    assert (
        headline([*own, "\n"], own)
        == "The memory changed no word: no passage speaks for this text."
    )
    assert headline([*own[:3], " ", "4"], own[:3]).startswith("The texts differ from “4” on")
    # A text that ended by itself is shorter than the other.
    assert headline(own[:2], own, "lm").startswith("The texts differ from “is” on")


def test_addresses_lead_to_the_web_only():
    web = ["https://example.org/x#page=3", "HTTP://example.org"]
    none = [
        "kiln.pdf#page=2", "../secret", "//evil.example.org/x", "javascript:alert(1)",
        "data:text/html,<script>", "https://", "file:///etc/passwd",
        "http://[broken", "upload:kiln.pdf", "", None,
    ]  # fmt: skip
    found = Node().evaluate("(...uris) => uris.map(knnLogits.addressOf)", *web, *none)
    assert found == [*web, *[None] * len(none)]


def test_signs_of_markdown_are_shown_as_what_they_mean():
    def drawn(text):
        return Node().evaluate("(text) => plain(knnLogits.rendered(text))", text)

    text = "# A *kiln*\nOld\n===\n\n- **warm** `x*y` [here](u)\n  * a**b**c 2 * 3 **kwargs"
    assert drawn(text) == (
        "<b>A <i>kiln</></>\n<b>Old</>\n\n• <b>warm</> <code>x*y</> here\n"
        "  • a**b**c 2 * 3 **kwargs"
    )
    table = "Two:\n| a | *b* |\n|---|:-:|\n| c | d |\n\nx | y\n| z"
    head = "<tr><th>a</><th><i>b</></></>"
    assert drawn(table) == f"Two:\n<table>{head}<tr><td>c</><td>d</></></>\nx | y\n| z"
    # A passage may begin or end within a row, and a mark may begin within one and end in another.
    marked = [["cut | a |\n| b"], [" | c |\n| *d", True], ["*\ue000 [x](u"], ["rl", True], [") y"]]
    rows = "<tr><td>cut</><td>a</></><tr><td>b </><td><mark>c</></></>"
    assert drawn(marked[:1]) == "<table><tr><td>cut</><td>a</></><tr><td>b</></></>"
    assert drawn(marked) == f"<table>{rows}<tr><td><i><mark>d</></> x y</></></>"


def test_a_word_without_a_vote_says_so(drawing):
    # The list of documents may credit one with a small share, so no line says that there is none.
    for lmbda, said in (
        (0.5, "the model’s own"),
        (0.0, "The memory has no part here: its strength is 0%."),
    ):
        page = drawing(views.frame({"knn": answer(token(" cover", 0.0, lmbda=lmbda))}, {}))
        assert page.locator(".kl-panel").count() == 0
        words(page).click()
        assert said in shown(page, ".kl-panel")
        assert (
            shown(page, ".kl-headline")
            == "The memory changed no word: no passage speaks for this text."
        )
