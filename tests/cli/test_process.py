"""The command line as a process of its own: what it prints, and how it stops."""

import signal
import subprocess
import sys

import pytest
from conftest import TEXTS
from forked import Fork, command

from knn_logits.cli import bars


def test_the_installed_command_prints_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "knn_logits", "info", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("info", "x" * 300),
        ("remove", "x" * 300, "--document", "a"),
        ("build", "MODEL", "TEXT", "--out", "x" * 300),
        ("build", "x" * 300, "TEXT", "--out", "store"),
        ("eval", "MODEL", "x" * 300, "TEXT"),
        ("import", "MODEL", "x" * 300, "--out", "store"),
    ],
    ids=lambda words: words[0],
)
def test_a_path_that_the_system_refuses_is_no_fault_of_the_package(model_folder, tmp_path, words):
    (tmp_path / "text.txt").write_text(TEXTS[0])
    places = {"MODEL": model_folder, "TEXT": tmp_path / "text.txt", "store": tmp_path / "store"}
    with Fork(command(*(places.get(word, word) for word in words))) as done:
        out, said = done.ended()
    lines = [line for line in said.splitlines() if line.startswith("knn-logits: ")]
    assert (done.returncode, out) == (1, "")
    assert "File name too long" in lines[-1]
    assert "unexpected" not in said


def test_what_reads_files_only_starts_without_torch(store):
    script = (
        "import sys; from knn_logits.cli.app import app; "
        "app(['info', sys.argv[1]], standalone_mode=False); "
        "print([one for one in ('torch', 'transformers', 'faiss', 'pandas') if one in sys.modules])"
    )
    command = [sys.executable, "-c", script, str(store.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("at", ["cli.app.command", "building.distributed.started_by_torchrun"])
def test_ctrl_c_before_the_work_begins_is_one_line(model_folder, tmp_path, monkeypatch, at):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"knn_logits.{at}", stop)
    with Fork(command("build", model_folder, tmp_path, "--out", tmp_path / "store")) as build:
        said = build.ended()
    assert (build.returncode, *said) == (130, "", "knn-logits: stopped\n")


def test_an_interrupted_build_says_how_to_go_on(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bars, "_INTERVAL", 0.0)
    (tmp_path / "long.txt").write_text("\n".join(TEXTS * 250))
    words = ("build", model_folder, tmp_path / "long.txt", "--out", tmp_path / "store")
    with Fork(command(*words)) as build:
        heard = []
        for line in build.stderr:
            heard.append(line)
            begins = "knn-logits: keys: "
            if line.startswith(begins) and sum(one.startswith(begins) for one in heard) == 1:
                build.send_signal(signal.SIGINT)
        assert build.wait() == 130
    assert "run the same command again" in heard[-1]
    assert "Traceback" not in "".join(heard)
    assert not (tmp_path / "store" / "datastore.json").exists()
