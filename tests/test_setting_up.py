"""What a fresh clone installs."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("demo", {"requirements.txt"}),
        ("app", {"requirements.txt"}),
        ("setup", {"requirements.txt", "requirements-dev.txt"}),
    ],
)
def test_the_demo_installs_no_tools_of_developers(tmp_path, monkeypatch, target, files):
    for name in ("MAKEFLAGS", "REQUIREMENTS"):  # of the `make test` that runs this
        monkeypatch.delenv(name, raising=False)
    command = ["make", "--dry-run", target, f"VENV={tmp_path}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {word for word in printed.split() if word.startswith("requirements")} == files
