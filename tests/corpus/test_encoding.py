"""Texts in other encodings than UTF-8: recognised, or refused with advice."""

import sys

import pytest
from corpus_files import failure, read, write

TEXTS = [
    ("Les élèves ont mangé à la cantine du collège; ça leur a plu.", "latin-1"),
    ("Die Königin gründete 1312 eine Stadt. Straße, Äpfel, Übung, größer.", "cp1252"),
    ("Zażółć gęślą jaźń. W Szczebrzeszynie chrząszcz brzmi w trzcinie.", "cp1250"),
    ("Королева основала город в 1312 году. Откройте крышку лебёдки.", "koi8-r"),
    ("女王は1312年に町を設立しました。手でカバーを開けてください。", "shift_jis"),
    ("女王于1312年建立了一座城市。请用手打开绞车的盖子。", "gb18030"),
]


MARKED = [("One.\nTwo.", name) for name in ("utf-16", "utf-8-sig")]


@pytest.mark.parametrize(("text", "name"), TEXTS + MARKED)
def test_an_encoding_is_recognised_and_said_to_be_a_guess_without_a_mark(tmp_path, text, name):
    path = write(tmp_path / "a.txt", text.replace("\n", "\r\n").encode(name))
    notes = []
    documents, skipped = read(path, on_note=lambda *note: notes.append(note))
    assert ([one.text for one in documents], skipped) == ([text], [])
    assert [noted for noted, _ in notes] == [path] * ((text, name) in TEXTS)
    assert all(note.endswith("a guess; save it as UTF-8") for _, note in notes)


def test_without_the_library_the_advice_names_both_ways(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "chardet", None)
    message = failure(write(tmp_path / "a.txt", b"caf\xe9 noir"))
    assert "save it as UTF-8" in message
    assert 'pip install "knn-logits[documents]"' in message
