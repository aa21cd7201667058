"""Serves the page with both demos. `make app` and a Hugging Face Space run it.

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

from knn_logits import Datastore, load_gate
from knn_logits_app import Example, Library, launch

ABOUT = (
    "SmolLM2-135M-Instruct with the documentation of SQLite. The other model, “demo”, is smaller, "
    "and has two invented texts: the manual of a machine and the chronicle of a country."
)
ABOUT_DEMO = (
    "A small model that never saw a word about them answers from two invented texts: the service "
    "manual of a machine and the chronicle of a country."
)
# Sentences that the documentation of SQLite goes on with.
PROMPTS = (
    "The intent of the developers is to support SQLite through",
    "An SQLite database is limited in size to",
    "The SQLite library consists of approximately",
    "The default page size was changed from",
)
QUESTIONS = (
    "How large can an SQLite database be?",
    "Until which year will SQLite be supported?",
    "Is SQLite in the public domain?",
)
# The examples ask for facts of the corpora, in words that neither corpus contains.
EXAMPLES = (
    ("remedy", "manual"),
    ("work", "chronicle"),
    ("cause", "manual"),
    ("charter", "chronicle"),
    ("place", "manual"),
)


def script(name: str) -> Any:
    """Imports a script of the folder `datastores`."""
    file = ROOT / "datastores" / name
    spec = spec_from_file_location(f"knn_logits_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def demo_library(stores: Path | None = None) -> Library:
    """Opens the demo's model with both its datastores, and builds datastores that are missing."""
    demo = script("demo/demo.py")
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
        about=ABOUT_DEMO,
        single_sentence=True,
        sample_text=" ".join(message[:12]),
    )


def sqlite_library() -> Library:
    """Opens SmolLM2-135M-Instruct with the documentation of SQLite."""
    smollm2 = script("sqlite/smollm2.py")
    model, tokenizer = smollm2.load(smollm2.make())
    store = Datastore(ROOT / "datastores" / "sqlite" / "sqlite-docs")
    library = Library.of(smollm2.NAME, model, tokenizer, [store], PROMPTS)
    library.about = ABOUT
    library.questions = QUESTIONS
    return library


def libraries() -> list[Library]:
    """Opens both demos, or the MODEL and DATASTORES (by spaces) of `make app` or a Space."""
    model, datastores = os.environ.get("MODEL"), os.environ.get("DATASTORES", "").split()
    if not model and not datastores:
        try:
            return [sqlite_library(), demo_library()]
        except ConnectionError as error:
            print(error, file=sys.stderr)
            return [demo_library()]
    if not model or not datastores:
        raise SystemExit(
            "only one of MODEL and DATASTORES is set: set both, or neither of them for the demo"
        )
    return [Library.open(model, datastores)]


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
    parser.add_argument("--demo", action="store_true", help="open the small demo alone")
    options = parser.parse_args()
    opened = [demo_library()] if options.demo else libraries()
    with contextlib.suppress(KeyboardInterrupt):
        launch(opened, host=options.host, port=options.port, names=options.name)


if __name__ == "__main__":
    main()
