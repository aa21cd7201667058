"""The vectors of sentences stay in step with the documents of a datastore."""

import math
import shutil

import numpy as np
import pytest
import torch

import knn_logits
from knn_logits.ask.ranking import Ranking
from knn_logits.building.removing import compact
from knn_logits.engine.encoder import Encoder
from knn_logits.engine.passages import read_passages
from knn_logits.errors import ConfigError

FIRST = ["The crane lifts crates. It is red.", "The pump needs oil."]
MORE = ["The lamp is lit each evening."]


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory):
    """A sentence encoder with random weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnop"])}
    plain = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    config = BertConfig(vocab_size=len(words), hidden_size=16, num_hidden_layers=1,
                        num_attention_heads=2, intermediate_size=16)  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def encoded(model, tokenizer, tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("KNN_LOGITS_ENCODER", tiny_encoder)
    return knn_logits.build_datastore(model, tokenizer, FIRST, tmp_path / "s", calibrate=False)


def test_each_sentence_has_a_vector(encoded, tiny_encoder):
    texts = ["The crane lifts crates.", "It is red.", FIRST[1]]
    expected = Encoder(tiny_encoder).encode(texts)
    assert encoded.vectors.dtype == np.float16
    assert np.abs(encoded.vectors - expected).max() < 1e-3
    assert encoded.vector_counts.tolist() == [2, 1]
    assert np.linalg.norm(expected, axis=1) == pytest.approx(np.ones(3), abs=1e-5)


def test_an_encoder_runs_in_bfloat16_where_the_processor_has_it(tiny_encoder, monkeypatch):
    encoders = []
    for found in ({}, {"avx512_bf16": True}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found, raising=False)
        encoders.append(Encoder(tiny_encoder))
    assert [encoder.model.dtype for encoder in encoders] == [torch.float32, torch.bfloat16]
    assert encoders[0].sha256 == encoders[1].sha256
    single, half = (encoder.encode(FIRST) for encoder in encoders)
    assert np.einsum("ij,ij->i", single, half).min() > 0.999
    assert half.dtype == np.float32


def test_the_default_encoder_is_for_english_documents(
    model, tokenizer, tiny_encoder, tmp_path, monkeypatch, caplog
):
    monkeypatch.delenv("KNN_LOGITS_ENCODER")
    monkeypatch.setattr("knn_logits.engine.encoder._FOLDERS", (tiny_encoder,))
    texts = [
        "Der Kran hebt die Kisten. Er ist rot und steht am Hafen.",
        "Die Pumpe braucht jede Woche Öl.",
    ]
    store = knn_logits.build_datastore(model, tokenizer, texts, tmp_path / "s", calibrate=False)
    assert store.vectors is None
    answer = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, store)).answer(
        "Wie oft braucht die Pumpe Öl?"
    )
    assert answer.text == texts[1]
    assert "an encoder for its language" in caplog.text


def test_added_synced_and_removed_documents_change_them(encoded, model, tokenizer):
    before = encoded.vectors.copy()
    grown = knn_logits.add_documents(model, tokenizer, encoded, MORE)
    assert grown.vector_counts.tolist() == [2, 1, 1]
    assert (grown.vectors[:3] == before).all()
    removed = knn_logits.remove_documents(grown, ["0"])
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, removed))
    found = asking.find("What lifts the crane?")
    assert {row.passage.document for row in found} == {1, 2}
    whole = compact(removed)
    assert whole.vector_counts.tolist() == [1, 1]
    assert (whole.vectors == grown.vectors[2:]).all()
    rows = [knn_logits.Document(MORE[0], "0"), knn_logits.Document("A new text.", "9")]
    synced = knn_logits.sync_documents(model, tokenizer, whole, rows, force=True).datastore
    assert len(synced.vectors) == synced.vector_counts.sum()
    assert synced.manifest.encoder == encoded.manifest.encoder


def test_an_encoder_with_other_weights_or_none_leaves_words_alone(
    encoded, model, tokenizer, tiny_encoder, monkeypatch, tmp_path, caplog
):
    def answered(store):
        asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, store))
        return asking.answer("What does the pump need?").text

    other = shutil.copytree(tiny_encoder, tmp_path / "other")
    record = encoded.manifest.encoder.model_copy(update={"sha256": "0" * 64})
    encoded.manifest = encoded.manifest.model_copy(update={"encoder": record})
    assert answered(encoded) == FIRST[1]
    assert "words alone" in caplog.text
    assert "weights" in caplog.text
    with pytest.raises(ConfigError, match="cannot be opened"):
        knn_logits.build_datastore(
            model, tokenizer, FIRST, tmp_path / "n", encoder=str(other / "none")
        )
    caplog.clear()
    monkeypatch.setenv("KNN_LOGITS_ENCODER", str(other / "none"))
    store = knn_logits.build_datastore(model, tokenizer, FIRST, tmp_path / "w", calibrate=False)
    assert store.vectors is None
    assert "words alone" in caplog.text


def test_images_and_addresses_are_no_part_of_the_texts_that_are_compared(
    model, tokenizer, tmp_path
):
    page = tmp_path / "page.md"
    badge = "[![Build (ci)](https://a.b/c.svg)](https://a.b) <a href='/x'><img src='b.png'></a>"
    page.write_text(
        f"# Crane {badge} [for boats](boats.md)\n\n"
        "A [crane](#what) lifts, says `list[0](x)` <b>. It is ![red](r.png)red.\n"
    )
    documents = list(knn_logits.read_corpus([str(page)]))
    assert [block.place for block in documents[0].blocks if block.place] == ["“Crane for boats”"]
    store = knn_logits.build_datastore(
        model, tokenizer, documents, tmp_path / "s", calibrate=False, encoder=""
    )
    (passage,) = read_passages(tokenizer, store)
    first, second = "A crane lifts, says `list[0](x)` <b>.", "It is red."
    assert passage.texts() == [f"Crane for boats\n{first}", f"Crane for boats\n{second}"]
    assert passage.in_context(passage.sentences[1]) == f"Crane for boats\n{first} {second}"
    assert passage.sentences[0].text == "A [crane](#what) lifts, says `list[0](x)` <b>."


def test_a_question_after_one_too_long_for_the_encoder_is_read_alone(tiny_encoder):
    encoder, texts = Encoder(tiny_encoder), ["A crane lifts.", "No bread."]
    last, question = "a kite at dawn " * 200, "Which crane lifts?"
    found = encoder.late_interaction(texts, last + question, start=len(last))
    np.testing.assert_allclose(found, encoder.late_interaction(texts, question))
    assert np.isfinite(found).all()


def test_what_is_near_to_the_last_question_alone_is_no_answer(
    encoded, tokenizer, tiny_encoder, monkeypatch
):
    def near_to_cranes(self, texts, question, start=0):
        nearest = 0.9 if "crane" in question else 0.1
        return np.array([[nearest, *[0.0] * (len(texts) - 1)]] * 2)

    monkeypatch.setattr(Encoder, "late_interaction", near_to_cranes)
    ranking, last = (
        Ranking(tokenizer, [encoded], Encoder(tiny_encoder)),
        "Which crane lifts crates?",
    )
    assert ranking.margin(ranking.rank(last, 5)) >= 0
    assert ranking.margin(ranking.rank(" Which crane lifts elephants?", 5)) >= 0
    assert ranking.margin(ranking.rank("And a massage?", 5, after=last)) < 0


def test_vectors_of_other_sentences_are_not_used_and_it_says_so(
    encoded, tokenizer, tiny_encoder, monkeypatch, caplog
):
    encoder = Encoder(tiny_encoder)
    Ranking(tokenizer, [encoded], encoder)
    assert "words alone" not in caplog.text
    monkeypatch.setattr("knn_logits.engine.passages.sentences_of", lambda text, language: [text])
    (found,) = Ranking(tokenizer, [encoded], encoder).rank("Which crane lifts crates?", 1)
    assert found.similarity is None
    assert "words alone: sentences end elsewhere" in caplog.text


def test_a_direction_that_all_vectors_share_does_not_count(tiny_encoder, monkeypatch):
    texts = ["a kite at dawn", "no bread", "one bridge"]

    def plain(self, texts, kind="document"):
        rows = [np.random.default_rng(list(text.encode())).normal(size=32) for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows])

    def shared(self, texts, kind="document"):
        return np.pad(plain(self, texts), ((0, 0), (0, 1)), constant_values=2.0) / 5**0.5

    found = []
    for encode in (plain, shared):
        monkeypatch.setattr(Encoder, "encode", encode)
        encoder = Encoder(tiny_encoder)
        vectors = encoder.encode(texts)
        found.append(encoder.similarities(vectors, vectors[0]))
    assert found[0][0] == pytest.approx(1.0)
    assert abs(found[0][1]) < 0.6
    assert found[1] == pytest.approx(found[0], abs=1e-3)


def test_late_interaction_takes_soft_minimum_and_mean_of_the_largest_cosines(
    tiny_encoder, monkeypatch
):
    from transformers import AutoModel, AutoTokenizer

    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)

    model = AutoModel.from_pretrained(tiny_encoder).eval()
    cut = AutoTokenizer.from_pretrained(tiny_encoder)

    def states(text):
        with torch.no_grad():
            found = model(**cut(text, return_tensors="pt")).last_hidden_state[0]
        return (found / found.norm(dim=-1, keepdim=True)).tolist()

    def cosine(one, other):
        return sum(a * b for a, b in zip(one, other, strict=True))

    texts, question = ["abc", "a long decline of peaks", "p"], "a cab in a pond"
    soft, mean = [], []
    for text in texts:  # one at a time: without padding
        largest = [max(cosine(one, other) for other in states(text)) for one in states(question)]
        mean.append(sum(largest) / len(largest))
        soft.append(-math.log(sum(math.exp(-4 * one) for one in largest) / len(largest)) / 4)
    encoder = Encoder(tiny_encoder)
    compared = encoder.late_interaction(texts, question)
    for expected, got in zip((soft, mean), compared, strict=True):
        # The mean of unrelated sentences is `unrelated`, which counts as 0.
        unrelated = (expected[0] - got[0]) / (1 - got[0])
        assert got == pytest.approx((np.array(expected) - unrelated) / (1 - unrelated), abs=1e-4)
    for got in encoder.late_interaction([question], question):
        assert got == pytest.approx(1.0)


def closest_to(monkeypatch, closeness):
    """Replaces the encoder's comparison of a text by a function of it, and similarities by 0."""
    monkeypatch.setattr(Encoder, "similarities", lambda self, rows, query: np.zeros(len(rows)))
    monkeypatch.setattr(
        Encoder,
        "late_interaction",
        lambda self, texts, *rest, **more: np.array([[*map(closeness, texts)]] * 2),
    )


def test_sentences_that_are_a_little_near_are_shown_beside_no_answer(
    encoded, model, tokenizer, monkeypatch
):
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, encoded))
    closest_to(monkeypatch, lambda text: 0.0)
    for similarity, shown in ((0.13, [FIRST[1]]), (0.05, [])):
        near = np.array([0.0, 0.0, similarity])
        monkeypatch.setattr(
            Encoder, "similarities", lambda self, rows, query, near=near: near[: len(rows)]
        )
        answer = asking.answer("And for children?")
        assert not answer.answered
        assert [row.sentence for row in answer.passages] == shown


@pytest.mark.parametrize(("closeness", "caution"), [(0.25, "doubtful"), (0.3, None)])
def test_an_answer_that_is_hardly_near_enough_has_a_caution_and_alternatives(
    closeness, caution, encoded, model, tokenizer, monkeypatch
):
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, encoded))
    closest_to(monkeypatch, lambda text: closeness * (text == FIRST[1]))
    monkeypatch.setattr(Encoder, "similarities", lambda self, rows, query: np.full(len(rows), 0.2))
    answer = asking.answer("And for children?")
    assert (answer.text, answer.answered, answer.caution) == (FIRST[1], True, caution)
    assert [row.read for row in answer.passages] == [True, *[False] * bool(caution)]
    assert ("may not answer" in answer.note) == bool(caution)


def test_the_best_sentences_are_compared_token_by_token(encoded, model, tokenizer, monkeypatch):
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, encoded))
    for first in (FIRST[1], "The crane lifts crates."):
        closest_to(monkeypatch, lambda text, first=first: 9.0 * (text == first))
        assert asking.find("What lifts crates?")[0].sentence.text == first


def test_the_sentence_before_is_quoted_too_if_it_has_more_of_the_questions_words(
    encoded, model, tokenizer, monkeypatch
):
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, encoded))
    closest_to(monkeypatch, lambda text: 5.0 * (text == "It is red."))
    questions = {"Which color has the crane?": FIRST[0], "Which color has it?": "It is red."}
    for question, text in questions.items():
        answer = asking.answer(question)
        assert answer.text == answer.passages[0].sentence == text
        assert asking.find(question)[0].sentence.text == "It is red."


@pytest.mark.parametrize("best", ["The crane lifts crates.", "It is red."])
@pytest.mark.parametrize("less", [0.02, 0.3])
def test_a_sentence_is_quoted_with_one_beside_it_that_is_nearly_as_close(
    best, less, encoded, model, tokenizer, monkeypatch
):
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, encoded))
    values = dict.fromkeys(["The crane lifts crates.", "It is red."], 5.0 - less) | {best: 5.0}
    closest_to(monkeypatch, lambda text: values.get(text, 0.0))
    assert asking.answer("What?").text == (FIRST[0] if less < 0.1 else best)


def test_sentences_without_a_space_between_them_are_quoted_as_they_stand(
    tiny_encoder, model, tokenizer, tmp_path, monkeypatch
):
    text = "船是红的。它很大。"  # The boat is red. It is big.
    store = knn_logits.build_datastore(
        model, tokenizer, [text], tmp_path / "s", encoder=tiny_encoder, calibrate=False
    )
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, store))
    closest_to(monkeypatch, lambda text: 5.0)
    answer = asking.answer("What?")
    assert answer.text == text
    assert answer.passages[0].place == (0, len(text))
