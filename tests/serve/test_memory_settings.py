"""The object `knn` of a request, and the sources that come back."""

import pytest

import knn_logits
from knn_logits import Datastore, Document, KNNLogitsProcessor
from knn_logits.building.removing import compact
from knn_logits.mixture.presets import generation_settings
from knn_logits_serve.served import Served
from serve.conftest import PROMPT, serving


def ask(client, knn=None, model="tiny+texts", **settings):
    found = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=12, temperature=0,
        extra_body={} if knn is None else {"knn": knn}, **settings,
    )  # fmt: skip
    return found.choices[0]


def test_a_request_turns_the_memory_on_and_off(client, by_library):
    alone, mixed = by_library(knn=False)[0], by_library()[0]
    assert alone != mixed
    assert ask(client, False).text == alone
    assert ask(client, None, "tiny").text == alone
    assert ask(client, True).text == mixed
    assert ask(client, {}).text == mixed
    assert not hasattr(ask(client, False), "sources")


def test_settings_of_a_request_are_the_librarys(client, by_library):
    given = {"k": 4, "lmbda": 0.9, "temperature": 0.5}
    assert ask(client, given).text == by_library(**given)[0]
    assert ask(client, {"lmbda": 0.2}).text == by_library(lmbda=0.2)[0]
    without = ask(client, {"exclude": ["1"]})
    assert without.text == by_library(exclude=["1"])[0]
    assert "1" not in [one["document"] for one in without.sources["documents"]]
    assert ask(client, {"lmbda": 0.0}).text == by_library(lmbda=0.0)[0]
    weighed = {"suffix_weight": 1e4, "temperature": 100.0}
    assert ask(client, weighed).text == by_library(**weighed)[0]
    assert ask(client, weighed).text != ask(client, {"temperature": 100.0}).text


def test_the_sources_are_the_traces(client, model, tokenizer, store):
    found = ask(client, {"k": 8, "lmbda": 0.95, "temperature": 0.1})
    ids = tokenizer(PROMPT, return_tensors="pt")
    settings = {"k": 8, "lmbda": 0.95, "temperature": 0.1}
    with KNNLogitsProcessor(model, store, **settings) as knn:
        output = model.generate(
            **ids, max_new_tokens=12, logits_processor=[knn], **generation_settings(store)
        )
        trace = knn.trace(output, tokenizer)[0]
    assert trace.text == found.text
    told = {one["document"]: one["share"] for one in found.sources["documents"]}
    wanted = {one.document: round(one.share, 4) for one in trace.documents if one.share >= 0.01}
    assert told == pytest.approx(wanted, abs=2e-4)
    spans = found.sources["spans"]
    assert spans
    assert found.sources["alone"] is trace.alone is False
    for span in spans:
        assert found.text[span["start"] : span["end"]] == span["text"]
        assert span["document"]["store"] == "texts"
        assert 0.05 <= span["document"]["share"] <= span["share"] <= 1
        if span["passage"]:
            assert span["passage"]["words"].strip() == span["text"]


@pytest.mark.parametrize(
    ("knn", "line"),
    [
        (
            {"exclude": ["nothing"]},
            "none of the datastores has a document with the id, title or uri 'nothing'",
        ),
        ({"lmbda": 1.5}, "knn: lmbda must lie between 0 and 1"),
        ({"lambda": 0.5}, "there is no setting 'lambda': write lmbda"),
        ({"exclude": ["x"] * 1025}, "exclude must be a list of at most 1024"),
        ("yes", "knn"),
    ],
)
def test_settings_that_make_no_sense_are_refused(client, openai, knn, line):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, knn)
    assert line in refused.value.message
    with pytest.raises(openai.BadRequestError, match=r"has no datastore: ask for tiny\+texts"):
        ask(client, {"k": 4}, "tiny")


def test_several_datastores_are_one_memory(model, tokenizer, build, store, tmp_path, openai):
    document = Document("The crane lifts a lamp.", "z", title="Z")
    other = build([document], tmp_path / "z", k=4, lmbda=0.5, temperature=1.0)
    served = Served("tiny", model, tokenizer, {"a": store, "b": other})
    assert list(served.names) == ["tiny+a+b", "tiny+a", "tiny+b", "tiny"]
    ids = tokenizer(PROMPT, return_tensors="pt")
    with KNNLogitsProcessor(model, [store, other], lmbda=0.9) as knn:
        output = model.generate(
            **ids, max_new_tokens=8, logits_processor=[knn], **generation_settings(store)
        )
    with serving(served) as running, running.client() as client:
        found = client.completions.create(
            model="tiny+a+b", prompt=PROMPT, max_tokens=8, extra_body={"knn": {"lmbda": 0.9}}
        )
    wanted = tokenizer.decode(output[0, ids["input_ids"].shape[1] :])
    assert found.choices[0].text == wanted.rstrip("\ufffd")
    assert {one["store"] for one in found.choices[0].sources["documents"]} <= {"a", "b"}


def test_a_running_server_answers_from_documents_that_are_there_now(model, tokenizer, tmp_path):
    folder = tmp_path / "notes"
    documents = [Document("The mill grinds rye.", id="a"), Document("The pump needs oil.", id="b")]
    knn_logits.build_datastore(model, tokenizer, documents, folder, calibrate=False)
    served = Served("tiny", model, tokenizer, {"notes": Datastore(folder)})

    def sources(client):
        found = client.completions.create(
            model="tiny+notes", prompt="The mill grinds", max_tokens=2,
            extra_body={"knn": {"lmbda": 0.9, "k": 64, "temperature": 1.0}},
        )  # fmt: skip
        return {one["document"] for one in found.choices[0].sources["documents"]}

    with serving(served) as running, running.client() as client:
        assert "a" in sources(client)
        knn_logits.remove_documents(folder, ["a"])
        assert "a" not in sources(client)
        more = [Document("The mill grinds rye and barley.", id="c")]
        knn_logits.add_documents(model, tokenizer, folder, more)
        assert "c" in sources(client)
        compact(folder)
        assert "c" in sources(client)
        # A folder that is no datastore any more is not opened, and the last memory stays.
        (folder / "datastore.json").write_text("{}")
        assert "c" in sources(client)
