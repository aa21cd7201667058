"""The demo's modules, importable as its scripts import them."""

import importlib
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "datastores" / "demo"


@pytest.fixture(scope="module")
def scripts():
    """Each of the demo's modules by its name; gone from `sys.modules` afterwards."""
    names = [file.stem for file in DEMO.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DEMO))
        yield {name: importlib.import_module(name) for name in names}
        for name in names:
            sys.modules.pop(name, None)
