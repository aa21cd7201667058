"""Writes the files of a Hub Space into a folder: python space/make.py build/space

A Space installs `requirements.txt` and runs `space/app.py`. Its front matter is in
`space/README.md`, so that the repository's README needs none.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# The parts of the repository that the page needs, and the licence.
PARTS = ("app", "knn_logits", "datastores/sqlite", "requirements.txt", "LICENSE")
_NOT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*")


def make_space(folder: Path) -> list[str]:
    """Writes the files into a folder.

    Args:
        folder: The folder for the Space's files, which is new or empty.

    Returns:
        The paths of the files, relative to the folder.

    Raises:
        FileExistsError: when the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: delete it, or name another folder")
    for part in PARTS:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_NOT)
        else:
            shutil.copy2(source, target)
    for name in ("README.md", "app.py"):
        shutil.copy2(HERE / name, folder / name)
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new or an empty folder")
    options = parser.parse_args()
    try:
        files = make_space(options.folder)
    except FileExistsError as error:
        sys.exit(f"make.py: {error}")
    print(f"{len(files)} files in {options.folder}: push them to a Space of the kind gradio")


if __name__ == "__main__":
    main()
