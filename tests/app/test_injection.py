"""Scripts in a corpus, its titles and addresses, a file's name and a prompt: none runs."""

import json

import pytest

from app.payloads import PAYLOADS

AT_ONCE = 3


# Each payload takes two answers of the page, so that `make test` tries every third.
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
    one.tab("Your text")
    corpus = tmp_path / "rows.jsonl"
    rows = [
        {"text": f"Sign {number} reads {payload} today.", "title": payload, "uri": payload}
        for number, payload in enumerate(payloads)
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = tmp_path / "<img src=x onerror=window.pwned=1>.txt"
    named.write_text("The name of this file is a trap.")
    page.locator("#own-files input[type=file]").set_input_files([corpus, named])
    page.wait_for_selector("#own-files :text('rows')")
    one.build()
    assert f"{len(payloads) + 1} documents" in page.locator("#built").text_content()
    one.tab("Explain")
    seen = set()

    def explain(some):
        page.locator("#explain-text textarea").fill(" ".join(row["text"] for row in some))
        one.mark("#explained")
        page.locator("#explain").click()
        one.fresh("#explained", ".kl-foot span, .kl-error")
        # Nothing waits for a mouse or a key either.
        assert page.evaluate(
            """() => [...document.querySelectorAll('#explained *')].filter((one) =>
              [...one.attributes].some((attribute) => attribute.name.startsWith('on'))).length"""
        ) == 0  # fmt: skip
        titles = page.locator("#explained .kl-doc b").all_text_contents()
        seen.update(row["title"] for row in some if row["title"] in titles)
        assert page.evaluate("window.pwned") is None

    for first in range(0, len(rows), AT_ONCE):
        explain(rows[first : first + AT_ONCE])
    # Behind another row a document may not be among the three strongest; alone it is the first.
    for row in rows:
        if row["title"] not in seen:
            explain([row])
    assert len(seen) == len(payloads)
    assert page.locator("#explained a[href^=javascript]").count() == 0
    one.tab("Generate")
    for first in range(0, len(rows), 10):
        one.write(" ".join(payloads[first : first + 10])[:400])
        assert page.evaluate("window.pwned") is None
    one.write("The name of this file is a")
    assert "onerror" in page.locator("#answers .kl-panels").inner_text()
    page.wait_for_timeout(500)
    assert page.evaluate("window.pwned") is None
    assert one.left == []
    assert one.problems == []
