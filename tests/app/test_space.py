"""What a Hub Space needs: its own README and files, and the entry."""

import ast
import contextlib
import importlib
import importlib.metadata
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from forked import Fork, alone_in
from office_files import docx, paragraph, pdf

from app.test_strangers import built
from knn_logits import Asking, Document
from knn_logits.hosting import Deadline
from knn_logits_app.requests import Lookup, Writing
from knn_logits_app.session import Session
from knn_logits_app.your_text import build_steps

ROOT = Path(__file__).parents[2]
# What answers the page's questions.
FACTS = ("281 terabytes", "2050", "in the Public Domain")


def test_the_front_matter_names_what_is_there():
    text = (ROOT / "space" / "README.md").read_text(encoding="utf-8")
    matter = yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])
    assert matter["sdk"] == "gradio"
    assert (ROOT / "space" / matter["app_file"]).is_file()
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert f"gradio=={matter['sdk_version']}\n" in pins


def test_a_made_space_has_its_own_readme_and_starts_alone(tmp_path):
    make = runpy.run_path(str(ROOT / "space" / "make.py"))["make_space"]
    folder = tmp_path / "space"
    files = make(folder)
    assert {"README.md", "app.py", "requirements.txt", "LICENSE", "app/app.py"} <= set(files)
    assert (folder / "README.md").read_bytes() == (ROOT / "space" / "README.md").read_bytes()
    assert not [name for name in files if "__pycache__" in name]
    with pytest.raises(FileExistsError, match="not empty"):
        make(folder)

    # Nothing of the repository is on the path: what is imported is the Space's own.
    def starts():
        alone_in(folder)
        sys.path.remove(str(folder))  # which the script adds by itself
        sys.argv = ["app.py", "--help"]
        with contextlib.suppress(SystemExit):
            runpy.run_path("app.py", run_name="__main__")
        import knn_logits
        import knn_logits_app

        print(knn_logits.__file__, knn_logits_app.__file__)

    # Other tests of this process import it as well, which takes seconds.
    importlib.import_module("gradio")
    with Fork(starts) as done:
        out, errors = done.ended()
    assert done.returncode == 0, errors
    *_, last = out.splitlines()
    assert all(Path(name).is_relative_to(folder) for name in last.split())


def pinned():
    """The names of the distributions that requirements.txt installs."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return {line.partition("==")[0] for line in lines if "==" in line and line[0] != "#"}


def test_all_that_reads_documents_is_installed_on_a_space():
    owners = importlib.metadata.packages_distributions()
    missing = set()
    for path in (ROOT / "knn_logits" / "corpus").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in {name.partition(".")[0] for name in names} & owners.keys():
                if not {one.lower().replace("_", "-") for one in owners[name]} & pinned():
                    missing.add(name)
    # No visitor asks for a data set of the Hub.
    assert missing - {"knn_logits", "datasets"} == set()


def test_a_visitor_of_a_space_uploads_documents(client, served, tmp_path, monkeypatch):
    """Without pypdf, lxml and mammoth the page said that a PDF is no text in UTF-8."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for name in pinned():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of another Python
            distribution = importlib.metadata.distribution(name)
            for first in {file.parts[0] for file in distribution.files or ()} - {".."}:
                with contextlib.suppress(FileExistsError):
                    (folder / first).symlink_to(distribution.locate_file(first))
    standard = [one for one in sys.path if "site-packages" not in one]
    monkeypatch.setattr(sys, "path", [*standard, str(folder)])
    word = docx(tmp_path / "kiln.docx", paragraph("The kiln of Harrow reaches 1280 degrees."))
    files = {
        "kiln.pdf": pdf("The kiln is old."),
        "kiln.docx": Path(word).read_bytes(),
        "kiln.html": b"<title>Kiln</title><p>The kiln is brown.</p>",
        "latin.txt": "Der Ofen ist heiß, größer und älter als die Mühle.".encode("latin-1"),
    }
    seen = built(client, "uploads01", files=files)
    assert "4 documents" in seen, seen[-500:]
    served[1].visitors.close()  # which other tests of the same page count


def test_the_entry_says_which_address_to_open_or_what_is_missing(monkeypatch, capsys):
    main = runpy.run_path(str(ROOT / "app" / "app.py"))["main"]

    def launched(library, on_ready, **_):
        on_ready("http://127.0.0.1:7860/")

    def missing():
        raise ConnectionError("the model is missing")

    # What takes long is imported after the first line.
    with monkeypatch.context() as nothing:
        nothing.setitem(sys.modules, "knn_logits_app.server", None)
        with pytest.raises(ImportError):
            runpy.run_path(str(ROOT / "app" / "app.py"), run_name="__main__")
    assert capsys.readouterr().out == "Opening the model and SQLite's documentation …\n"
    monkeypatch.setitem(main.__globals__, "sqlite_library", lambda: None)
    monkeypatch.setitem(main.__globals__, "launch", launched)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    main()
    assert capsys.readouterr().out.startswith("Open http://127.0.0.1:7860/ in a browser.")
    monkeypatch.setitem(main.__globals__, "sqlite_library", missing)
    with pytest.raises(SystemExit, match="the model is missing"):
        main()


@pytest.fixture(scope="module")
def sqlite(instruct_folder):
    """What the page opens, which takes seconds."""
    return runpy.run_path(str(ROOT / "app" / "app.py"))["sqlite_library"]()


@pytest.mark.instruct
def test_the_entry_opens_the_model_with_its_datastore(
    sqlite, instruct_folder, encoder_folder, monkeypatch
):
    monkeypatch.setenv("KNN_LOGITS_ENCODER", encoder_folder)
    assert sqlite.name == Path(instruct_folder).name
    assert list(sqlite.stores) == ["sqlite-docs"]
    assert len(sqlite.examples) == 4
    demo = runpy.run_path(str(ROOT / "datastores" / "sqlite" / "demo.py"))
    assert set(demo["BEGINNINGS"]) < set(sqlite.examples)
    # "How large can an SQLite database be?" was answered with the sizes of pages.
    asking = Asking(sqlite.model, sqlite.tokenizer, sqlite.memory)
    for question, fact in zip(sqlite.questions, FACTS, strict=True):
        assert fact in asking.answer(question).text
    # "The SQLite library consists of approximately" once went on with "4044 assert() statements".
    store, session = sqlite.store, Session(sqlite)
    tokens = [store.tokens[one.first : one.first + one.length] for one in store.documents]
    pages = " ".join(sqlite.tokenizer.decode(one.tolist()) for one in tokens)
    for example in sqlite.examples:
        writing = Writing(example, Lookup(("sqlite-docs",)), new_tokens=40, sentence=True)
        *_, answers = session.write(writing, Deadline(600))
        written = " ".join(f"{example}{answers['knn'].text}".split())
        assert written.endswith(".")
        assert written in " ".join(pages.split())


@pytest.mark.instruct
def test_unrelated_documents_beside_it_leave_a_text_as_it_is(sqlite, tmp_path):
    """A PDF of opening hours once made "The SQLite library consists of approximately hours"."""
    session = Session(sqlite)
    texts = {
        "hours": "Opening hours of the Harbour Library. The library is open from Monday to Friday "
        "for approximately nine hours. On Saturday the library opens at ten. The library consists "
        "of a reading room and a cafe. The hours change in winter: approximately 6 hours a day. "
        "Visitors may use the library for two hours.",
        "press": "The Brindle is a tabletop cider press for apples, pears and quinces. The mill of "
        "the Brindle reaches 74 decibels at full speed. The Brindle weighs 38 kilograms when the "
        "basket is empty. It was limited in size to two baskets. The project was started in a "
        "barn.",
    }
    private = {}
    for name, text in texts.items():
        documents = [Document(text, name)]
        *_, private[name] = build_steps(session, documents, tmp_path / name, Deadline(600))

    def written(prompt, *stores):
        writing = Writing(prompt, Lookup(stores), new_tokens=30, sentence=True)
        *_, answers = session.write(writing, Deadline(600), private)
        return answers["knn"].text

    mine = "The library is open from Monday to Friday for"
    assert written(mine, "sqlite-docs", *texts) == " approximately nine hours."
    for prompt in (
        "The SQLite library consists of approximately",
        "The SQLite project was started on",
    ):
        assert written(prompt, "sqlite-docs", *texts) == written(prompt, "sqlite-docs")
