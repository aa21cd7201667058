"""A conversation on an open page, which tests read and drive."""

from app.conftest import expect

QUEEN = "Which queen founded the town of Oldenport?"
MISSING = "Who paints the harbour gate valve lock?"
GENERAL = "Explain photosynthesis"
OPEN_ALL = "document.querySelectorAll('#chat details').forEach((one) => { one.open = true; })"


class Chat:
    """A conversation on an open page."""

    def __init__(self, one):
        self.visit, self.page = one, one.page
        self.box = self.page.get_by_label("Your question")
        self.log = self.page.get_by_role("list", name="The conversation")

    def turn(self, number=-1):
        """A turn; the last one if no number is given."""
        turns = self.page.locator("#chat .kl-log > li")
        return turns.last if number < 0 else turns.nth(number)

    def send(self, question):
        self.box.fill(question)
        self.box.press("Enter")
        expect(self.turn().locator(".kl-question")).to_have_text(question)

    def ask(self, question):
        """Sends a question, and waits for the whole answer."""
        self.send(question)
        expect(self.page.locator("#chat .kl-log")).to_have_attribute("aria-busy", "false")
        return self.turn().locator(".kl-reply")
