"""A visitor's own text: read within limits, built with progress, kept for one, deleted."""

import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gate_cases import random_adaptive
from office_files import docx, paragraph
from tuned import write_settings

from app.conftest import TINY, eventually
from knn_logits import Datastore, Document
from knn_logits.errors import LimitError
from knn_logits.hosting import Deadline
from knn_logits.mixture.gates.adaptive import AdaptiveGate
from knn_logits.mixture.presets import stored_gate
from knn_logits_app import tab_chat
from knn_logits_app.drawer import document
from knn_logits_app.given_text import measured_html
from knn_logits_app.page_parts import Server, values_of
from knn_logits_app.requests import Lookup, RequestError, friendly, writing_of
from knn_logits_app.visitors import YOUR_TEXT, Visitors
from knn_logits_app.your_text import build_steps, read_files

TEXT = "The lighthouse of Orrin Bay was painted blue in 1931. Its keeper is Mara Tolliver."
# A fact of the manual in words that it does not contain.
MEASURED = "What helps against E529 is this: adjust the front hose."


@pytest.fixture
def visitors():
    found = Visitors()
    yield found
    found.close()


def build(session, visitors, visitor="one", text=TEXT, deadline=None):
    documents = [Document(text, "pasted text", title="Pasted text")]
    return list(steps_of(session, visitors, visitor, documents, deadline or Deadline(60)))


def steps_of(session, visitors, visitor, documents, deadline):
    room, old = visitors.new_folder(visitor), visitors.stores(visitor).get(YOUR_TEXT)
    for step in build_steps(session, documents, room, deadline, old):
        if isinstance(step, Datastore):
            visitors.keep(visitor, step, {})
        yield step


def test_it_has_the_settings_and_the_gate_of_the_first_datastore(session, visitors, tmp_path):
    first = next(iter(session.library.stores.values()))
    gate = random_adaptive("cosine")
    folder = shutil.copytree(first.folder, tmp_path / "like")
    write_settings(Datastore(folder), 64, 0.7, 0.5, gate, suffix_weight=4.0)
    like = Datastore(folder)
    library = replace(session.library, stores={"manual": like})
    session = replace(session, library=library)
    store = build(session, visitors)[-1]
    assert values_of(store) == {"k": 64, "lmbda": 0.7, "temperature": 0.5}
    assert store.manifest.settings.suffix_weight == 4.0
    found = stored_gate(store)
    assert isinstance(found, AdaptiveGate)
    for name, array in gate.to_arrays().items():
        assert np.array_equal(found.to_arrays()[name], array)


def test_a_text_is_built_with_progress_and_used_at_once(session, visitors):
    *progress, store = build(session, visitors)
    assert progress
    assert all(done <= (total or done) for _, done, total in progress)
    own = visitors.stores("one")
    assert own == {YOUR_TEXT: store}
    assert store.manifest.metric == "cosine"
    wanted = writing_of(
        "The lighthouse of Orrin Bay was", Lookup((YOUR_TEXT,)), new_tokens=20, sentence=True
    )
    for frame in session.write(wanted, Deadline(60), own):
        answers = frame
    assert answers["knn"].text == " painted blue in 1931."
    sources = answers["knn"].trace[0].tokens[0].neighbors
    assert sources[0].store == YOUR_TEXT
    assert sources[0].title == "Pasted text"
    both = Lookup((YOUR_TEXT, "manual"))
    assert session.explain(TEXT, both, Deadline(60), own).trace[0].tokens


def test_documents_are_added_and_those_of_the_same_file_replaced(session, visitors):
    def grown(*documents):
        *_, store = steps_of(session, visitors, "one", documents, Deadline(60))
        return store

    first = grown(Document(TEXT, "light.md"), Document("The cat is old.", "rows.csv:2"))
    light = first.documents[0]
    second = grown(Document("The kiln is new.", "kiln.md"), Document("The dog naps.", "rows.csv:1"))
    assert [second.documents[number].id for number in (0, 2, 3)] == [
        "light.md",
        "kiln.md",
        "rows.csv:1",
    ]
    assert second.manifest.removed == (1,)
    assert second.folder != first.folder
    assert not first.folder.exists()
    third = grown(Document(TEXT + " It has a red book.", "light.md"))
    assert third.manifest.removed == (0, 1)
    # What an earlier answer tells of the first version is still found where it was.
    shown = document(third, session.library.tokenizer, "light.md", [(light.first, 3)])
    assert "".join(text for text, *_ in shown["pieces"]) == TEXT
    assert values_of(third) == values_of(first)


def test_it_is_deleted_with_the_page(session, visitors):
    second = build(session, visitors)[-1]
    assert second.folder.exists()
    assert (second.folder.parent.stat().st_mode & 0o077) == 0
    visitors.forget("one")
    assert not second.folder.exists()
    assert visitors.stores("one") == {}
    build(session, visitors)
    folder = visitors.by_session["one"].folder
    visitors.close()
    assert not folder.exists()


@pytest.mark.parametrize("before", [0, 1], ids=["first", "added"])
def test_a_cancelled_build_leaves_what_was_there(session, visitors, before):
    own = {YOUR_TEXT: build(session, visitors)[-1]} if before else {}
    deadline = Deadline(60)
    documents = [Document(TEXT * 100, "long")]
    steps = steps_of(session, visitors, "one", documents, deadline)
    next(steps)
    deadline.cancel()
    with pytest.raises(LimitError, match="stopped"):
        list(steps)
    assert visitors.stores("one") == own
    assert all(len(store.documents) == 1 and store.is_current for store in own.values())
    eventually(lambda: len(list(visitors.by_session["one"].folder.iterdir())) == before)


def test_a_file_is_held_to_the_text_that_it_gives(session, tmp_path):
    """Its few KB give far more text than a visitor may bring."""
    path = Path(docx(tmp_path / "notes.docx", paragraph("words " * 160_000)))
    assert path.stat().st_size < session.limits.text_bytes / 4
    with pytest.raises(LimitError, match="more than 400,000 bytes of text together"):
        read_files(session, [str(path)], Deadline(60), {})
    cancelled = Deadline(60)
    cancelled.cancel()
    with pytest.raises(LimitError, match="stopped"):
        read_files(session, [str(path)], cancelled, {})


def test_stopping_reaches_the_visitors_own_work_only(visitors):
    one, two, build = (Deadline(60) for _ in range(3))
    with (
        visitors.running("one", one, "write"),
        visitors.running("two", two, "write"),
        visitors.running("one", build, "build"),
    ):
        visitors.stop("one", "write")
        visitors.stop("nobody")
        visitors.stop(None)
        assert [each.cancelled for each in (one, two, build)] == [True, False, False]
        with visitors.running("two", Deadline(60), "write"):
            assert two.cancelled
    assert not visitors.by_session


def test_what_waited_when_it_was_stopped_is_stopped_when_it_begins(visitors):
    visitors.stop("one", "write", arrived=5.0)
    cancelled = []
    for session, kind, arrived in (
        ("one", "write", 4.0), ("one", "write", 5.0), ("one", "ask", 4.0), ("two", "write", 4.0)
    ):  # fmt: skip
        with visitors.running(session, Deadline(60), kind, arrived) as deadline:
            cancelled.append(deadline.cancelled)
    assert cancelled == [True, False, False, False]
    # Requests may be handled in another order than that in which they arrived.
    with (
        visitors.running("one", Deadline(60), "write", 8.0) as newer,
        visitors.running("one", Deadline(60), "write", 6.0) as older,
    ):
        visitors.stop("one", "write", arrived=7.0)
        assert (newer.cancelled, older.cancelled) == (False, True)


def test_files_of_text_and_json_lines_are_read(session, tmp_path):
    (tmp_path / "notes.md").write_text("# Notes\nThe pump is new.")
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "The winch is old.", "title": "Winch", "uri": "https://example.org/w"}\n'
        '{"text": "The crane is red.", "uri": "javascript:alert(1)"}\n'
    )
    (tmp_path / "none.txt").write_bytes(b"\xff\xfe\x00bad\x80")
    (tmp_path / "page.pdf").write_bytes(b"%PDF-1.7\n")
    names = ("notes.md", "none.txt", "page.pdf", "rows.jsonl")
    files = [str(tmp_path / name) for name in names]
    found, sizes, unread = read_files(session, files, Deadline(60), {"old.md": 7})
    assert [one.title for one in found] == ["notes.md", "Winch", "rows.jsonl:2"]
    assert [one.uri for one in found] == [None, "https://example.org/w", None]
    assert sizes == {"old.md": 7, "notes.md": 24, "rows.jsonl": 34}
    # What cannot be read keeps nothing else out, and is said without Python's names.
    text, page = unread
    assert text.startswith("none.txt (damaged: it is utf-16 text but for some bytes")
    assert page == "page.pdf (damaged; save it again)"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bomb.txt", gzip.compress(b"0" * 1_000_000)),
        ("table.parquet", b"PAR1"),
        ("archive.txt", b"PK\x03\x04rest"),
        ("bad.docx", b"PK\x03\x04rest"),
        ("program.exe", b"MZ"),
        ("rows.jsonl", b'{"title": "no text"}\n'),
        ("empty.txt", b""),
    ],
)
def test_what_is_no_text_is_refused(session, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError) as caught:
        read_files(session, [str(tmp_path / name)], Deadline(60), {})
    assert friendly(caught.value).startswith(f"Could not read {name} (")
    assert str(tmp_path) not in friendly(caught.value)


def test_too_much_is_refused_before_anything_is_read(session, tmp_path):
    (tmp_path / "large.txt").write_text("word " * 100_000)
    (tmp_path / "small.txt").write_text("word " * 100)
    many = {f"{number}.txt": 1 for number in range(20)}
    for files, before, line in (
        (["large.txt"], {}, "the text has 500,000 bytes"), (["large.txt"] * 30, {}, "be 30 files"),
        (["small.txt"], many, "be 21 files"), (["gone.txt"], {}, "attach it again"),
        (["small.txt"], {"small.txt": 399_900}, "more than 400,000 bytes of text together"),
    ):  # fmt: skip
        with pytest.raises((LimitError, RequestError), match=line):
            read_files(session, [str(tmp_path / name) for name in files], Deadline(60), before)


def test_a_build_has_ten_times_the_time_of_an_answer(session, visitors, monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr("knn_logits.hosting.time", SimpleNamespace(monotonic=lambda: now[0]))

    def steps(session, documents, room, deadline, old):
        for times in (9, 2):
            now[0] += times * session.limits.seconds
            deadline.check()
            yield "keys", times, None

    monkeypatch.setattr(tab_chat, "build_steps", steps)
    (tmp_path / "a.txt").write_text(TEXT)
    request = SimpleNamespace(session_hash="one", request=SimpleNamespace(scope={"arrived": 0.0}))
    frames = tab_chat.attached(Server(session, visitors), [str(tmp_path / "a.txt")], request)
    assert next(frames)["attached"] == "Memorizing word pieces: 9"
    with pytest.raises(LimitError, match="the time limit of 6000 seconds"):
        next(frames)


def test_a_text_is_measured(session):
    html = measured_html(session, MEASURED, Lookup(("manual",)), Deadline(60))
    assert f"lowers the perplexity of “{MEASURED[:43]} …” (" in html
    assert "Perplexity is the number of words that the model hesitates between." in html
    assert "in the datastore" not in html
    held = json.loads((TINY / "manual.jsonl").read_text().splitlines()[0])["text"]
    for text, share in ((held, "all"), (20 * f"{MEASURED} " + held, r"\d+%")):
        warned = measured_html(session, text, Lookup(("manual",)), Deadline(60))
        assert re.search(f" But {share} of the text.* are in the datastore, .* gains less", warned)
        assert "kl-note" in warned
    with pytest.raises(RequestError, match="too short to measure"):
        measured_html(session, "The lathe is old.", Lookup(("manual",)), Deadline(60))
    silent = measured_html(session, MEASURED, Lookup(("manual",), {"lmbda": 0.0}), Deadline(60))
    for part in ("kl-note", "hardly changes the perplexity", "(+0.0%)"):
        assert part in silent
    documents_alone = Lookup(("manual",), {"lmbda": 1.0})
    assert "the perplexity is infinite" in measured_html(
        session, MEASURED, documents_alone, Deadline(60)
    )
    with pytest.raises(LimitError):
        measured_html(session, MEASURED, Lookup(("manual",)), Deadline(0.0))
    with pytest.raises(LimitError, match="the limit is 10,000"):
        measured_html(session, "x" * 90_000, Lookup(("manual",)), Deadline(60))
