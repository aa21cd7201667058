"""The card: what the package writes, and what it leaves to the user."""

import re

import pytest
from handmade import make_manifest

from knn_logits.hub.card import BEGIN, END, _noted, front_matter, license_id, merged, page
from knn_logits.store.records import ModelRecord, PairsRecord, RecallRecord


def manifest(**settings):
    model = ModelRecord(
        id="org/model", revision="a" * 40, type="gpt2", config_sha256="0", dtype="float32"
    )
    return make_manifest(**{"model": model, "entries": 123_456, "documents": 7, **settings})


def test_front_matter():
    fields = front_matter(manifest(license="CC BY-SA 3.0"))
    assert fields["tags"][0] == "knn-logits"
    assert fields["base_model"] == "org/model"
    assert fields["license"] == "cc-by-sa-3.0"
    assert fields["size_categories"] == ["100K<n<1M"]
    other = front_matter(manifest(license="Crown copyright"))
    assert (other["license"], other["license_name"]) == ("other", "Crown copyright")
    # A folder's name is no model of the Hub.
    local = ModelRecord(id="tiny", type="gpt2", config_sha256="0", dtype="float32")
    assert "base_model" not in front_matter(manifest(model=local))
    assert "license" not in front_matter(manifest())


@pytest.mark.parametrize(
    ("text", "known"),
    [("CC BY-SA 3.0", "cc-by-sa-3.0"), ("cc0-1.0", "cc0-1.0"), ("MIT", "mit"), ("mine", None)],
)
def test_licences(text, known):
    assert license_id(text) == known


HOSTILE = "x --> <script>a</script>\n---\n# b `c` | [d](e) \u202e\x1b[2J; rm -rf ~ " + "y" * 5000


def test_text_of_others_means_nothing_in_a_card():
    model = ModelRecord(
        id=HOSTILE, revision=HOSTILE, type=HOSTILE, config_sha256="0", dtype=HOSTILE
    )
    index = manifest().index.model_copy(update={"factory": HOSTILE})
    found = manifest(model=model, index=index, license=HOSTILE, source=HOSTILE)
    fields = front_matter(found)
    assert "base_model" not in fields
    assert len(fields["license_name"]) < 600
    text = merged(None, "org/name", fields, page(found, "org/name", None))
    assert merged(text, "org/name", fields, page(found, "org/name", None)) == text
    # Above it is front matter, which is data.
    body = text.partition("# name")[2]
    assert "<script>" not in body
    assert not set("\u202e\x1b") & set(text)
    assert not [line for line in text.splitlines() if line.startswith("# ") and "b" in line]
    seen = re.sub("<!--.*?-->|`[^`]*`", "", body.replace("\\`", ""))
    assert "[d](e)" not in seen
    comments = [line for line in text.splitlines() if line.startswith("<!--")]
    assert all(line.count("-->") == 1 and line.endswith("-->") for line in comments)
    assert "knn-logits generate MODEL org/name" in text
    assert len(text) < 10_000


def test_a_name_with_a_sign_of_comments_is_noted_as_it_is():
    fields = {"license_name": "a --> b", "tags": ["<x>"]}
    assert _noted(merged(None, "org/name", fields, "")) == fields


def test_the_page_says_what_there_is():
    index = manifest().index.model_copy(
        update={
            "factory": "IVF64,SQ8",
            "nprobe": 4,
            "recall": RecallRecord(at=64, value=0.95, queries=9),
        }
    )
    settings = manifest().settings.model_copy(update={"suffix_weight": 4.0})
    text = page(
        manifest(index=index, settings=settings, source="A `book`\nof | pages"), "org/name", None
    )
    for part in (
        "`org/model`, revision `" + "a" * 40,
        "A \\`book\\` of \\| pages",
        "123,456 of 7 documents",
        "no keys",
        "`IVF64,SQ8`, nprobe 4, recall@64 0.950",
        "k 8, lmbda 0.25, temperature 10, suffix weight 4 (not calibrated)",
        'Datastore.from_pretrained("org/name")',
    ):
        assert part in text
    assert "## Evaluation" not in text
    with_report = page(manifest(), "org/name", "v1", "## Evaluation\n\n![plot](evaluation.png)")
    assert "### Evaluation" in with_report
    assert 'from_pretrained("org/name", revision="v1")' in with_report


FIELDS = {"tags": ["knn-logits", "knn-lm"], "license": "mit", "viewer": False}


def data_of(card):
    from huggingface_hub import DatasetCard

    return DatasetCard(card).data.to_dict()


def test_the_page_says_how_sources_are_read():
    assert "pairs" not in page(manifest(), "org/name", None)
    plain = page(manifest(pairs=PairsRecord()), "org/name", None)
    assert "| pairs | sources and targets |" in plain
    pairs = PairsRecord(source_prefix="to `German`: ", source_lang="en", target_lang="de")
    text = page(manifest(pairs=pairs), "org/name", None)
    assert "| pairs | sources and targets, read after 'to \\`German\\`: ', from en to de |" in text


def test_a_new_card_and_the_same_again():
    card = merged(None, "org/name", FIELDS, "the page")
    assert "\n# name\n" in card
    assert card.index(BEGIN) < card.index("the page") < card.index(END)
    assert data_of(card) == FIELDS
    assert merged(card, "org/name", FIELDS, "the page") == card


def test_new_values_where_the_user_changed_nothing():
    card = merged(None, "org/name", FIELDS, "the page")
    new = {**FIELDS, "license": "cc0-1.0", "tags": ["knn-logits", "other"], "base_model": "a/b"}
    again = merged(card, "org/name", new, "another page")
    assert data_of(again) == new
    assert "the page" not in again
    without = merged(card, "org/name", {"tags": ["knn-logits"]}, "x")
    assert data_of(without) == {"tags": ["knn-logits"]}


def test_a_field_that_the_user_changed_added_or_deleted():
    card = merged(None, "org/name", FIELDS, "the page")
    edited = card.replace("license: mit", "license: apache-2.0\nlanguage: en")
    edited = edited.replace("viewer: false\n", "").replace("- knn-lm\n", "- mine\n")
    data = data_of(merged(edited, "org/name", {**FIELDS, "license": "cc0-1.0"}, "x"))
    assert data == {"tags": ["knn-logits", "mine"], "license": "apache-2.0", "language": "en"}


def test_a_card_that_is_somebody_elses():
    own = "---\nlicense: mit\ntags:\n- mine\n---\n\n# Mine\n\nText.\n"
    card = merged(own, "org/name", FIELDS, "the page")
    assert card.index("Text.") < card.index(BEGIN)
    assert data_of(card)["tags"] == ["knn-logits", "knn-lm", "mine"]
    plain = merged("# Mine\n", "org/name", FIELDS, "the page")
    assert data_of(plain) == FIELDS
    # Marks that were taken away are written again, behind what the user wrote.
    cut = card.replace(BEGIN, "").replace(END, "")
    assert merged(cut, "org/name", FIELDS, "new page").count(BEGIN) == 1
