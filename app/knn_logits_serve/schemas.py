"""Compiles JSON schemas in a child process: one of 41 bytes can take hours and gigabytes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

# The processor time and the memory of a child. The server compiles what passes once more.
CPU_SECONDS, _MEMORY_BYTES = 2, 1 << 30
_WAIT_SECONDS, _MAX_CHARACTERS = 60, 200_000
_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from knn_logits_serve.schemas import main; main()"
)


def compiled(schema: dict[str, Any]) -> tuple[str, str | None]:
    """Returns the grammar of a schema and None, or a reason why there is none."""
    paths = json.dumps([path for path in sys.path if path])
    command = [sys.executable, "-I", "-B", "-c", _PROGRAM, paths, str(CPU_SECONDS)]
    try:
        child = subprocess.run(
            command, input=json.dumps(schema).encode(), capture_output=True, timeout=_WAIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "", "it takes too much time to compile"
    if child.returncode or not child.stdout:
        return "", "it takes too much time or memory to compile"
    grammar, reason = json.loads(child.stdout)
    return grammar, reason


def main() -> None:
    """Compiles the schema on stdin, in the child."""
    try:
        import resource
    except ImportError:  # Windows, where only the time that has passed ends the child
        pass
    else:
        seconds = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    from llguidance import LLMatcher, LLTokenizer

    schema = json.loads(sys.stdin.read())
    try:
        grammar = str(LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS))
        failed, messages = len(grammar) > _MAX_CHARACTERS, ["it is too large"]
        if not failed:
            failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    except ValueError as error:
        failed, messages, grammar = True, [str(error)], ""
    if not failed and not messages:
        matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
        # Some limits of the library are met by the first token only.
        matcher.compute_bitmask()
        messages = [matcher.get_error()] if matcher.is_error() else []
    reason = " ".join(messages) if failed or messages else None
    sys.stdout.write(json.dumps([grammar, reason]))
