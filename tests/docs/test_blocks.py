"""Every block of code in the README and the documentation is what it seems: nothing is run here."""

import ast
import inspect
import json
import re
import sys
from importlib import import_module

import pytest

import knn_logits
from docs.pages import NAMES, ROOT, blocks_of, commands_of
from knn_logits.cli.app import command as command_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANGUAGES = {"bash", "python", "json", "text"}
COMMANDS = command_line.commands
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_what_they_seem(name):
    for block in blocks_of(name):
        assert block.language in LANGUAGES, f"{block} is of no language that is checked"
        if block.language == "json":
            json.loads(block.code)
        elif block.language == "python":
            check_python(block)
        elif block.language == "bash":
            for words in commands_of(block):
                check_command(words, block)


def check_command(words, block):
    program, *rest = words
    if program == "knn-logits":
        check_knn_logits(rest, block)
    elif program == "torchrun" and "knn_logits" in rest:
        check_knn_logits(rest[rest.index("knn_logits") + 1 :], block)
    elif program == "make":
        wanted = [one for one in rest if "=" not in one]
        assert set(wanted) <= TARGETS, f"{block}: make has no {wanted}"
    elif program == "pip":
        check_pip(rest, block)
    elif program == "python" and rest[0] == "-m":
        assert (ROOT / f"{rest[1].replace('.', '/')}.py").is_file(), f"{block}: no {rest[1]}"
    elif program == "python":
        script = ROOT / rest[0]
        assert script.is_file(), f"{block}: no {rest[0]}"
        code = code_of(script)
        if "add_model_options(" in code:
            code += code_of(script.with_name("common.py"))
        for option in (one for one in rest if one.startswith("--")):
            assert f'"{option}"' in code, f"{block}: {rest[0]} has no {option}"
    else:
        known = {"git", "cd", "source", "ray", "ln", "vllm"}
        assert program in known, f"{block}: {program} is checked by nobody"


def code_of(script):
    """A script's code, with that of the scripts beside it from which it takes options."""
    code = script.read_text("utf-8")
    beside = re.findall(r"^from (\w+) import .*\basks_", code, re.MULTILINE)
    return "".join([code, *((script.parent / f"{one}.py").read_text("utf-8") for one in beside)])


def check_knn_logits(words, block):
    name, *rest = words
    assert name in COMMANDS, f"{block}: no command {name}"
    try:
        COMMANDS[name].make_context(name, list(rest))
    except Exception as error:
        pytest.fail(f"{block}: knn-logits {' '.join(words)}: {error!r}")


def check_pip(words, block):
    assert words[0] in {"install", "uninstall"}
    for number, word in enumerate(words):
        if word == "-r":
            assert (ROOT / words[number + 1]).is_file(), f"{block}: no {words[number + 1]}"
        extras = re.fullmatch(r"\.\[(.+)\]", word)
        for extra in extras[1].split(",") if extras else ():
            assert extra in PROJECT["optional-dependencies"], f"{block}: no extra {extra}"
        # It is not published: nothing may say that it can be had by its name.
        assert not word.startswith(PROJECT["name"]), f"{block}: {word} is not on PyPI"


def check_python(block):
    """The code compiles, its names are there, and its calls fit their signatures."""
    tree = ast.parse(block.code, str(block))
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "knn_logits":
            module = import_module(node.module)
            for one in node.names:
                known[one.asname or one.name] = getattr(module, one.name)
    known |= {name: getattr(knn_logits, name) for name in knn_logits.__all__ if name not in known}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            check_call(node, known[node.func.id], block)


def check_call(node, called, block):
    if any(isinstance(one, ast.Starred) for one in node.args):
        return
    given = {one.arg: None for one in node.keywords if one.arg is not None}
    try:
        inspect.signature(called).bind_partial(*node.args, **given)
    except TypeError as error:
        pytest.fail(f"{block}, line {node.lineno} of the block: {called.__name__}: {error}")
