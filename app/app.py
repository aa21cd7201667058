"""The page with the demo: `make app`, and what a Hugging Face Space runs.

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
# A Space has installed requirements.txt and nothing of this repository.
for folder in (ROOT / "app", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
if os.environ.get("SPACE_ID"):
    # It has to come before torch.
    with contextlib.suppress(ImportError):
        import spaces  # noqa: F401

from rich.console import Console

from knn_logits import load_gate
from knn_logits_app import Example, Library, launch

ABOUT = (
    "A small model that never saw a word about them answers from two invented texts: the service "
    "manual of a machine and the chronicle of a country."
)
# Facts of the corpora, asked in words that stand in neither.
EXAMPLES = (
    ("remedy", "manual"),
    ("work", "chronicle"),
    ("cause", "manual"),
    ("charter", "chronicle"),
    ("place", "manual"),
)


def demo_module() -> Any:
    """datastores/demo/demo.py, which `make demo` runs: it has the model and builds the stores."""
    spec = spec_from_file_location("knn_logits_demo", ROOT / "datastores" / "demo" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def demo_library(stores: Path | None = None) -> Library:
    """The demo's model with both its datastores, built where they are not there yet."""
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
    # Sentences of the corpora's kind, with their facts, in words that stand nowhere in them.
    told = [
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
        one_sentence=True,
        sample_text=" ".join(told[:12]),
    )


def library() -> Library:
    """What the page shows: the demo, or what the variables of a duplicated Space name.

    MODEL is a model on the Hub, and DATASTORES are names of datastores with blanks between them.
    """
    model, datastores = os.environ.get("MODEL"), os.environ.get("DATASTORES", "").split()
    if not model and not datastores:
        return demo_library()
    if not model or not datastores:
        raise SystemExit("MODEL and DATASTORES belong together: set both, or none for the demo")
    return Library.open(model, datastores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="where to listen; this machine only unless given")
    parser.add_argument("--port", type=int, help="the first free one from 7860 unless given")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="a name under which visitors reach it, such as knn.example.org; may be repeated",
    )
    options = parser.parse_args()
    launch([library()], host=options.host, port=options.port, names=options.name)


if __name__ == "__main__":
    main()
