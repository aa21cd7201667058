"""Checks a wheel and a source distribution: python .ci/wheel_contents.py *.whl *.tar.gz."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("knn_logits", "app/knn_logits_app", "app/knn_logits_serve")


def wanted() -> set[str]:
    """The files of the packages that Git knows, by their paths in the repository."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in found.stdout.splitlines() if (ROOT / name).exists()}


def report(file: str, missing: set[str], foreign: set[str]) -> bool:
    """Prints what differs, and returns whether nothing does."""
    for name in sorted(missing):
        print(f"{file} lacks {name}: see [tool.setuptools] in pyproject.toml", file=sys.stderr)
    for name in sorted(foreign):
        print(f"{file} should not hold {name}: see MANIFEST.in", file=sys.stderr)
    if not missing | foreign:
        print(f"{file}: the contents are right")
    return not missing | foreign


def check_wheel(path: Path) -> bool:
    """Whether a wheel holds the packages' files and its metadata, and nothing else."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {name.removeprefix("app/") for name in wanted()}
    return report(path.name, expected - names, names - expected)


def check_source(path: Path) -> bool:
    """Whether a source distribution holds what the wheel is built from, without tests."""
    with tarfile.open(path) as archive:
        names = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    expected = wanted() | {"LICENSE", "README.md", "pyproject.toml"}
    allowed = expected | {"MANIFEST.in", "PKG-INFO", "setup.cfg"}
    foreign = {name for name in names - allowed if ".egg-info/" not in name}
    return report(path.name, expected - names, foreign)


if __name__ == "__main__":
    wheel, source = (Path(name) for name in sys.argv[1:3])
    sys.exit(not all([check_wheel(wheel), check_source(source)]))
