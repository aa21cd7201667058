"""What a new user comes for takes at most three actions from the page's opening.

An action is a click, or one text that is typed or pasted. Waiting for an answer is none.
"""

from urllib.parse import parse_qs, urlsplit

import pytest

from app.conftest import expect
from app.test_take import COPIED, FIRST

MOST = 3
TEXT = (
    "The lighthouse of Orrin Bay was painted blue in 1931. Its keeper, Mara Tolliver, wrote the "
    "weather into a red book each evening. The lamp of the lighthouse burns rape oil."
)


class User:
    """A user on a page that was just opened, whose actions are counted."""

    def __init__(self, page, narrow):
        self.page, self.narrow = page, narrow
        self.actions = 0

    def click(self, what):
        self.actions += 1
        what.click()

    def type(self, place, text):
        self.actions += 1
        self.page.locator(place).fill(text)

    def see(self, what, text):
        """Waits until a place shows a text, in sight and not under something else."""
        expect(what).to_contain_text(text)
        expect(what).to_be_visible()
        assert self.actions <= MOST


@pytest.fixture(params=[1280, pytest.param(390, marks=pytest.mark.soak)])
def user(visit, request):
    one = visit(request.param, "light")
    one.page.evaluate(f"() => {{ {COPIED} }}")
    narrow = request.param < 760
    if narrow:
        one.page.set_viewport_size({"width": 390, "height": 844})
    found = User(one.page, narrow)
    expect(one.page.locator("#answers .kl-side-knn .kl-text")).to_contain_text("adjust")
    yield found
    assert found.actions <= MOST


def open_word(user):
    """On a phone a tap opens the sources of a word, and on a desktop they are open already."""
    if user.narrow:
        user.click(user.page.locator("#answers .kl-changed[role=button]").first)


@pytest.mark.parametrize("user", [1280, 390], indirect=True)
def test_the_source_of_a_word_and_what_changes_without_it(user):
    answers = user.page.locator("#answers")
    open_word(user)
    user.see(answers.locator(".kl-sources").first, "Error E529 (Kenmouth lathe)")
    user.see(answers.locator(".kl-sources mark").first, "adjust the front hose")
    user.click(answers.get_by_role("button", name="Write without it").first)
    user.see(answers.locator(".kl-headline"), "Without it ")
    expect(answers.locator(".kl-side-knn h2")).to_contain_text("Without “Error E529")
    user.see(answers.locator(".kl-side-old .kl-text"), "adjust the front hose")
    assert user.actions <= 2


def test_a_text_of_ones_own_is_asked(user):
    page = user.page
    if not user.narrow:
        # A slider that was moved for another text does not hold for this one.
        page.get_by_label("number input for λ, weight of the memory").fill("0.02")
    user.click(page.get_by_role("tab", name="Your text"))
    user.type("#own-text textarea", TEXT)
    user.click(page.locator("#build"))
    answer = page.locator("#answers .kl-side-knn .kl-text")
    user.see(answer, "The lighthouse of Orrin Bay was painted blue in 1931")
    user.see(page.locator("#answers .kl-docs"), "Pasted text")
    expect(page.locator("#prompt textarea")).to_have_value("The lighthouse of Orrin Bay")
    # Others cannot open an answer of the visitor's own text.
    assert page.locator("#answers .kl-copy-link").count() == 0
    # The settings fit.
    assert page.locator("#lmbda input[type=number]").input_value() == "0.8"
    # Another beginning takes one more action.
    page.get_by_role("tab", name="Your text").click()
    chips = page.locator("#built [data-try]")
    assert chips.count() >= 3
    chips.nth(1).click()
    expect(page.locator("#answers .kl-side-knn .kl-prompt")).to_contain_text("Its keeper")


def test_a_sentence_is_checked(user):
    page = user.page
    user.click(page.get_by_role("tab", name="Explain"))
    user.type("#explain-text textarea", "What helps against E529 is this: polish the front hose.")
    user.click(page.locator("#explain"))
    user.see(
        page.locator("#explained .kl-headline"),
        "Its neighbors would have written another word at 1",
    )
    outvoted = page.locator("#explained .kl-w.kl-outvoted[data-word]")
    assert outvoted.all_inner_texts() == ["polish"]
    if not user.narrow:
        against = page.locator("#explained .kl-against")
        user.see(against, "The memory’s neighbors would have written adjust here")


def test_an_answer_is_shared(user):
    page = user.page
    user.click(page.locator("#answers").get_by_role("button", name="Copy a link"))
    page.wait_for_function("copied.length")
    asked = parse_qs(urlsplit(page.evaluate("copied[0]")).query)
    assert asked["q"] == [FIRST]
    assert asked["store"] == ["manual"]
