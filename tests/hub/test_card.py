"""The card: what the package writes, and what it leaves to the user."""

import re

from handmade import make_manifest

from knn_logits.hub.card import BEGIN, END, card, front_matter
from knn_logits.store.records import ModelRecord, RecallRecord


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
    other = front_matter(manifest(license="Crown copyright"))
    assert (other["license"], other["license_name"]) == ("other", "Crown copyright")
    # A folder's name is no model of the Hub.
    local = ModelRecord(id="tiny", type="gpt2", config_sha256="0", dtype="float32")
    assert "base_model" not in front_matter(manifest(model=local))
    assert "license" not in front_matter(manifest())


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
    text = card(found, "org/name")
    assert card(found, "org/name", old=text) == text
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


def test_the_page_says_what_there_is():
    index = manifest().index.model_copy(
        update={
            "factory": "IVF64,SQ8",
            "nprobe": 4,
            "recall": RecallRecord(at=64, value=0.95, queries=9),
        }
    )
    settings = manifest().settings.model_copy(update={"suffix_weight": 4.0})
    text = card(manifest(index=index, settings=settings, source="A `book`\nof | pages"), "org/name")
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
    assert 'from_pretrained("org/name@v1")' in card(manifest(), "org/name", "v1")


def data_of(text):
    from huggingface_hub import DatasetCard

    return DatasetCard(text).data.to_dict()


MIT = manifest(license="MIT")


def test_a_card_that_is_somebody_elses():
    own = "---\nlicense: bsd-2-clause\nbase_model: org/old\ntags:\n- mine\n---\n\n# Mine\n\nText.\n"
    text = card(MIT, "org/name", old=own)
    assert text.index("Text.") < text.index(BEGIN)
    assert data_of(text)["tags"] == ["knn-logits", "mine"]
    assert data_of(text)["license"] == "bsd-2-clause"
    assert data_of(text)["base_model"] == "org/model"
    assert data_of(card(MIT, "org/name", old="# Mine\n")) == front_matter(MIT)
    # Marks that were taken away are written again, behind what the user wrote.
    cut = text.replace(BEGIN, "").replace(END, "")
    assert card(MIT, "org/name", old=cut).count(BEGIN) == 1
