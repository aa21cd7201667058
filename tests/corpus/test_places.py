"""Lines and headings of plain text as places, and large files in parts."""

from corpus_files import places_of, read, write

from knn_logits.corpus import file_rows
from knn_logits.corpus.reading import read_corpus

LINE = "The harbour crane lifts twelve crates an hour.\n"


def test_the_lines_of_a_long_text_are_its_places(tmp_path):
    text = (LINE * 200 + "\n\n") + LINE + "\n" + LINE
    for name in ("tool.py", "tool.txt"):
        ((document,), _) = read(write(tmp_path / name, text))
        places = places_of(document)
        assert places[0][1] == "line 1"
        assert len(places) > 4
        for start, name, _ in places:
            assert name == f"line {1 + document.text[:start].count(chr(10))}"
            assert start == 0 or document.text[start - 1] == "\n"
        # A long paragraph has several places, and is one block.
        assert [one.kind for one in document.blocks if one.kind] == ["p", "p", "p"]


def test_a_short_text_has_lines_if_it_has_several(tmp_path):
    assert places_of(read(write(tmp_path / "a.txt", "one\ntwo\n"))[0][0]) == [(0, "line 1", "")]
    assert places_of(read(write(tmp_path / "b.txt", "one\n"))[0][0]) == []


def test_underlined_headings(tmp_path):
    text = (
        "---\ntitle: x\n---\n\nA title\n=======\nwords\n\nPart  two\n---\n"
        "words\nmore words\n\n---\n\n"
        "- a list\n---\n\na | b\n--- | ---\n\n---\nlast\n\n```\nno\n==\n```\n"
    )
    ((document,), _) = read(write(tmp_path / "a.md", text))
    assert places_of(document) == [
        (text.index("A title"), "“A title”", "a-title"),
        (text.index("Part"), "“Part two”", "part-two"),
    ]


def test_the_headings_of_markdown_are_its_places(tmp_path):
    text = (
        "Before.\n\n# Guide #\ntext\n```\n# a comment\n```\n##no heading\n### Errors, & `winches`\n"
    )
    ((document,), _) = read(write(tmp_path / "guide.md", text))
    first, second = places_of(document)
    assert first[1:] == ("“Guide”", "guide")
    assert second[1:] == ("“Errors, & `winches`”", "errors--winches")
    assert document.text[second[0] :].startswith("### Errors")


def test_a_large_file_is_several_documents_of_one_id(tmp_path, monkeypatch):
    monkeypatch.setattr(file_rows, "LARGEST_ROW", 3000)
    large = write(tmp_path / "a.txt", LINE * 100)
    small = write(tmp_path / "b.txt", LINE)
    documents = list(read_corpus([large, small, large]))
    assert "".join(one.text for one in documents if one.id == "a.txt") == LINE * 100
    assert {one.id for one in documents} == {"a.txt", "b.txt", "a.txt#2"}
    assert all(len(one.text) <= 3000 for one in documents)
    assert len(documents) > 3
    lines = {"a.txt": 1, "b.txt": 1, "a.txt#2": 1}
    for document in documents:
        if places_of(document):
            assert places_of(document)[0][1] == f"line {lines[document.id]}"
        lines[document.id] += document.text.count("\n")
