"""Puts the folders of other tests on the path, since the scripts here run without pytest."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for name in (".", "durability", "corpus", "serve", "app", "../app"):
    path = str((TESTS / name).resolve())
    if path not in sys.path:
        sys.path.append(path)
