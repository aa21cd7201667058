"""Scripts in a corpus, its titles and addresses, a file's name and a prompt: none runs."""

import json

import pytest

from app.payloads import PAYLOADS

AT_ONCE = 9
# Opens every word of an explained text in turn. Each panel names the documents behind the word. The
# function returns their titles, and the elements that would wait for a mouse or a key.
OPEN_ALL = """() => {
  const titles = new Set();
  const waiting = (place) => [...document.querySelectorAll(place)].filter((one) =>
    [...one.attributes].some((attribute) => attribute.name.startsWith('on'))).length;
  let handlers = waiting('#explained *');
  for (const word of document.querySelectorAll('#explained .kl-w[role=button]')) {
    if (word.ariaExpanded !== 'true') word.click();
    for (const title of document.querySelectorAll('#explained .kl-doc b'))
      titles.add(title.textContent);
    handlers += waiting('#explained :is(.kl-panels, .kl-docs) *');
  }
  return [[...titles], handlers];
}"""


# All payloads take half a minute, so that `make test` tries every third.
@pytest.mark.parametrize(
    "payloads",
    [
        pytest.param(PAYLOADS[::3], id="every third"),
        pytest.param(PAYLOADS, id="all", marks=pytest.mark.soak),
    ],
)
def test_payloads_execute_nothing_and_call_nobody(visit, tmp_path, payloads):
    assert len(set(PAYLOADS)) == 50
    one = visit()
    page = one.page
    corpus = tmp_path / "rows.jsonl"
    rows = [
        {"text": f"Sign {number} reads {payload} today.", "title": payload, "uri": payload}
        for number, payload in enumerate(payloads)
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = tmp_path / "<img src=x onerror=window.pwned=1>.txt"
    named.write_text("The name of this file is a trap.")
    one.attach(corpus, named)
    assert f"{len(payloads) + 1} documents" in page.locator("#chat .kl-divider").inner_text()
    one.tab("Explain")
    seen = set()
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        page.locator("#explain-text textarea").fill(" ".join(row["text"] for row in some))
        one.mark("#explained")
        page.locator("#explain").click()
        one.fresh("#explained", ".kl-foot span, .kl-error")
        titles, handlers = page.evaluate(OPEN_ALL)
        seen.update(titles)
        assert handlers == 0
        assert page.locator("#explained a[href^=javascript]").count() == 0
        assert page.evaluate("window.pwned") is None
    # Each payload was shown in a panel, as a title and in a passage.
    assert seen >= set(payloads)
    one.tab("Generate")
    for first in range(0, len(rows), 10):
        one.write(" ".join(payloads[first : first + 10])[:400])
        assert page.evaluate("window.pwned") is None
    one.write("The name of this file is a")
    assert "onerror" in page.locator("#answers .kl-panels").inner_text()
    # The browser has had time for two frames, in which a script of an element would have run.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("window.pwned") is None
