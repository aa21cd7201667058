"""The page says so when the memory holds nothing near, and tools of MCP get answers as JSON."""

import json

from app.conftest import expect


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
