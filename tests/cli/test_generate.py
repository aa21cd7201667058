"""What `generate` and `explain` print and write."""

from byte_tokens import make_byte_fallback
from conftest import TEXTS, make_gpt2

import knn_logits
from knn_logits.generation.drafts import Drafter

PROMPT = "When error code E42 appears, open"


def test_a_text_that_follows_a_cut_character_is_whole(run, tmp_path):
    """Llama's tokenizer has a token for each byte of a rare character."""
    tokenizer, model = make_byte_fallback(), make_gpt2()
    text = "the sea 東京 is far. " * 8
    store = knn_logits.build_datastore(
        model, tokenizer, [text], tmp_path / "s", k=4, index="exact", calibrate=False
    )
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    for tokens in range(1, 9):
        options = ["--max-new-tokens", tokens, "--lmbda", 1.0, "--temperature", 0.01, "--json"]
        done = run("generate", tmp_path / "m", store.folder, "--prompt", "the sea 東", *options)
        written = "".join(one["token"] for one in done.json["tokens"])
        assert written.startswith("京"[: tokens // 3])
        assert done.json["text"].rstrip("\ufffd") == written.rstrip("\ufffd")


def test_generate_streams(run, model_folder, store):
    arguments = ["generate", model_folder, store.folder, "--prompt", PROMPT]
    done = run(*arguments)
    assert done.out == f"{PROMPT}{run(*arguments, '--json').json['text']}\n"


def test_drafts_can_be_switched_off(run, model_folder, store, monkeypatch):
    asked = []
    monkeypatch.setattr(Drafter, "draft", lambda *_: asked.append(1) or [])
    arguments = ["generate", model_folder, store.folder, "--prompt", PROMPT]
    run.good(*arguments, "--no-draft")
    assert not asked
    run.good(*arguments)
    assert asked


def test_explain_reads_a_file(run, model_folder, store, tmp_path):
    (tmp_path / "text.txt").write_text(TEXTS[1], encoding="utf-8")
    (tmp_path / "other.txt").write_bytes(TEXTS[1].encode("utf-16"))
    arguments = ["explain", model_folder, store.folder]
    one, other = (run(*arguments, text, "--json").out for text in (tmp_path / "text.txt", TEXTS[1]))
    assert one == other
    bad = run.refused(*arguments, tmp_path / "other.txt")
    assert "is not valid UTF-8" in bad.err
