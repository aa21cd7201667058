"""`/v1/trace` finds a text in the datastores, without the model."""

TEXT = "They say: open the winch cover and clear the cable drum by hand. Then rest."


def test_the_spans_of_each_datastore(http, served, monkeypatch):
    monkeypatch.setattr(served.model, "forward", None)  # which nothing may call
    answer = http.post("/v1/trace", json={"model": "tiny+texts", "text": TEXT})
    (span,) = answer.json()["stores"]["texts"]
    assert TEXT[span["start"] : span["end"]] == span["text"]
    assert span["text"].strip() == "open the winch cover and clear the cable drum by hand."
    assert (span["count"], span["documents"][0]["document"]) == (1, "1")
    alone = http.post("/v1/trace", json={"model": "tiny", "text": TEXT})
    assert alone.json()["stores"] == {}


def test_bad_bodies_are_refused(http):
    for body, status in (
        ({"model": "other", "text": TEXT}, 404),
        ({"model": "tiny", "text": ""}, 400),
        ({"model": "tiny", "text": "a" * 20_001}, 400),
        ({"model": "tiny"}, 400),
    ):
        answer = http.post("/v1/trace", json=body)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
