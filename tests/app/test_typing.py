"""What a visitor types, ticks or moves stays, however early it is, and whatever the server says."""

from app.conftest import expect

# Types into every field as soon as the browser has shown it, as a quick visitor or a link would.
TYPE_AT_ONCE = """
window.typed = [];
const type = (field) => setTimeout(() => {
  const text = field.type === "number" ? "0.5" : `typed ${typed.length}`;
  const kind = field.matches("textarea") ? HTMLTextAreaElement : HTMLInputElement;
  Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(field, text);
  field.dispatchEvent(new Event("input", { bubbles: true }));
  typed.push([field, text]);
});
new MutationObserver(() => {
  for (const field of document.querySelectorAll("textarea, input[type=number]")) {
    if (!field.dataset.seen) type(field);
    field.dataset.seen = "1";
  }
}).observe(document, { childList: true, subtree: true });
"""
FRAMES = """(frames) => new Promise((done) => {
  const next = () => (frames-- > 0 ? requestAnimationFrame(next) : done());
  next();
})"""
TABS = ("Chat", "Explain", "Evaluate", "Generate")


def test_what_is_typed_as_soon_as_a_field_is_there_stays(visit):
    one = visit(script=TYPE_AT_ONCE)
    page = one.page
    for tab in TABS:
        one.tab(tab)
        page.evaluate(FRAMES, 5)
    page.get_by_label("Set length and sampling").check()
    page.evaluate(FRAMES, 5)
    typed = page.evaluate("typed.map(([field, text]) => [text, field.value, field.isConnected])")
    # Four boxes of text, and the numbers at the side and of the sampling.
    assert len(typed) == 10
    assert all(field == text and there for text, field, there in typed), typed


def test_what_is_moved_next_is_never_set_back_by_a_late_answer(visit):
    page = visit().page
    late = []
    page.route("**/queue/join**", lambda route: late.append(route))
    page.get_by_label("fixed").check()
    number = page.get_by_label("number input for Strength of all words (λ)")
    number.fill("0.25")
    number.press("Tab")
    page.get_by_role("button", name="Travellers thank").click()
    number.fill("0.45")
    page.evaluate(FRAMES, 5)
    assert len(late) == 1  # the example's answer
    late[0].continue_()
    expect(page.locator("#answers .kl-side-knn .kl-prompt")).to_contain_text("Travellers")
    assert number.input_value() == "0.45"
