"""The page tries a visitor's own text at once, and says so when nothing near is in the memory."""

import json

from app.conftest import expect

TEXT = (
    "The lighthouse of Orrin Bay was painted blue in 1931. Its keeper, Mara Tolliver, wrote the "
    "weather into a red book each evening. The lamp of the lighthouse burns rape oil."
)


def test_a_text_of_ones_own_is_tried_at_once(visit):
    one = visit()
    page = one.page
    one.tab("Your text")
    page.locator("#own-text textarea").fill(TEXT)
    one.build()
    chips = page.locator("#built [data-try]")
    assert chips.count() >= 3
    expect(page.get_by_role("tab", name="Generate")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#prompt textarea")).to_have_value("The lighthouse of Orrin Bay")
    answer = page.locator("#answers .kl-side-knn .kl-text")
    expect(answer).to_contain_text("was painted blue in 1931")
    expect(page.locator("#gate input")).not_to_be_checked()
    expect(page.locator("#answers .kl-docs")).to_contain_text("Pasted text")
    one.tab("Your text")
    chips.nth(1).click()
    expect(page.locator("#answers .kl-side-knn .kl-prompt")).to_contain_text("Its keeper")
    assert one.problems == []


def test_where_nothing_is_near_the_nearest_is_shown_and_what_can_be_asked(visit):
    one = visit()
    page = one.page
    one.write("My neighbour's cat likes to sleep in the sun because the weather")
    far = page.locator("#answers .kl-far")
    expect(far).to_contain_text("Nothing near.")
    expect(far).to_contain_text("The nearest passage is:")
    chip = far.locator(".kl-chip").first
    text = chip.inner_text()
    chip.click()
    expect(page.locator("#answers .kl-side-knn .kl-prompt")).to_have_text(text)
    expect(page.locator("#answers .kl-far")).to_have_count(0)
    assert one.problems == []


def test_tools_of_mcp_answer_json_with_a_summary(url):
    import httpx
    import pytest

    pytest.importorskip("mcp")
    headers = {"accept": "application/json, text/event-stream"}
    path = f"{url}/gradio_api/mcp/"
    with httpx.Client(timeout=180) as client:
        listed = client.post(
            path, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=headers
        )
        data = next(one for one in listed.text.splitlines() if one.startswith("data:"))
        tools = json.loads(data[5:])["result"]["tools"]
        name = next(one["name"] for one in tools if one["name"].endswith("generate"))
        asked = {
            "name": name,
            "arguments": {
                "prompt": "What helps against E529 is this:", "new_tokens": 8, "max_neighbors": 1,
            },
        }  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asked}
        answer = client.post(path, json=body, headers=headers)
    data = next(one for one in answer.text.splitlines() if one.startswith("data:"))
    (content,) = json.loads(data[5:])["result"]["content"]
    found = json.loads(content["text"])
    assert found["text"].startswith(" adjust the front hose")
    assert "Error E529" in found["summary"]
    assert "the memory changed 3" in found["summary"]
    assert {len(one["neighbors"]) for one in found["tokens"]} <= {0, 1}
