"""What the extension for text-generation-webui finds in its host, which is a stand-in here."""

import importlib.util
import sys
import types

import pytest

from plugin.asking import SCRIPT


@pytest.fixture
def host(monkeypatch):
    """What the extension imports of the host: its model, and its log."""
    modules = types.ModuleType("modules")
    modules.shared = types.SimpleNamespace(model=None, tokenizer=None, gradio={})
    modules.logging_colors = types.ModuleType("modules.logging_colors")
    modules.lines = []
    modules.logging_colors.logger = types.SimpleNamespace(warning=modules.lines.append)
    for name in ("logging_colors",):
        monkeypatch.setitem(sys.modules, f"modules.{name}", getattr(modules, name))
    monkeypatch.setitem(sys.modules, "modules", modules)
    return modules


@pytest.fixture
def extension(host):
    """The script, loaded as the host loads it: alone, under a name of its own."""
    spec = importlib.util.spec_from_file_location("user_ext_knn_logits", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def loaded(host, mine, tokenizer):
    host.shared.model, host.shared.tokenizer = mine, tokenizer
    return mine
