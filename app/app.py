"""Serves the page with the demo. `make app` and a Hugging Face Space run it.

python app/app.py [--port 7860] [--name knn.example.org]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# A Space has installed requirements.txt, but not this repository's packages.
for folder in (ROOT / "app", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
if os.environ.get("SPACE_ID"):
    # `spaces` has to be imported before torch.
    with contextlib.suppress(ImportError):
        import spaces  # noqa: F401

from rich.console import Console

from knn_logits import load_gate
from knn_logits_app import Example, Library, launch

ABOUT = (
    "A small model that never saw a word about them answers from two invented texts: the service "
    "manual of a machine and the chronicle of a country."
)
# The examples ask for facts of the corpora, in words that neither corpus contains.
EXAMPLES = (
    ("remedy", "manual"),
    ("work", "chronicle"),
    ("cause", "manual"),
    ("charter", "chronicle"),
    ("place", "manual"),
)


def demo_module() -> Any:
    """Imports datastores/demo/demo.py, which loads the model and builds the datastores."""
    spec = spec_from_file_location("knn_logits_demo", ROOT / "datastores" / "demo" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def demo_library(stores: Path | None = None) -> Library:
    """Opens the demo's model with both its datastores, and builds datastores that are missing."""
    demo = demo_module()
    model, tokenizer = demo.load_model()
    console = Console(stderr=True)
    opened = {
        kind: demo.open_store(kind, model, tokenizer, stores or demo.STORES, console)
        for kind in demo.KINDS
    }
    examples = []
    for relation, kind in EXAMPLES:
        rows = demo.questions_of(kind, "final")
        row = next(row for row in rows if row["relation"] == relation)
        examples.append(Example(row["new"], (kind,)))
    # These sentences state facts of the manual in words that it does not contain.
    message = [
        f"{row['new']} {row['answer']}."
        for row in demo.questions_of("manual", "final")[:40]
        if not row["new"].startswith("Question")
    ]
    return Library(
        "demo",
        model,
        tokenizer,
        opened,
        gates={kind: load_gate(demo.gate_file(kind)) for kind in demo.KINDS},
        examples=tuple(examples),
        about=ABOUT,
        single_sentence=True,
        sample_text=" ".join(message[:12]),
    )


def library() -> Library:
    """Opens the demo, or the MODEL and DATASTORES (by spaces) of a duplicated Space."""
    model, datastores = os.environ.get("MODEL"), os.environ.get("DATASTORES", "").split()
    if not model and not datastores:
        return demo_library()
    if not model or not datastores:
        raise SystemExit(
            "only one of MODEL and DATASTORES is set: set both, or neither of them for the demo"
        )
    return Library.open(model, datastores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="the address to listen on (default: this machine only)")
    parser.add_argument(
        "--port", type=int, help="the port to listen on (default: the first free port from 7860)"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="a name under which visitors reach the page, such as knn.example.org; repeatable",
    )
    options = parser.parse_args()
    launch([library()], host=options.host, port=options.port, names=options.name)


if __name__ == "__main__":
    main()
