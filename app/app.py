"""Serves the page with SQLite's documentation. `make app` and a Hugging Face Space run it.

python app/app.py [--port 7860]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SQLITE = ROOT / "datastores" / "sqlite"
# A Space has installed requirements.txt, but not this repository's packages.
for folder in (ROOT / "app", ROOT, SQLITE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
if os.environ.get("SPACE_ID"):
    # `spaces` has to be imported before torch.
    with contextlib.suppress(ImportError):
        import spaces  # noqa: F401
if __name__ == "__main__":
    # The imports alone take long on a busy machine.
    print("Opening the model and SQLite's documentation …", flush=True)

from knn_logits import Datastore
from knn_logits_app.library import Library
from knn_logits_app.server import launch

# Beginnings of sentences of the documentation. A test writes each of them on.
PROMPTS = (
    "An SQLite database is limited in size to",
    "The intent of the developers is to support SQLite through",
    "The SQLite project was started on",
    "SQLite does not compete with client/server databases. SQLite competes with",
)
QUESTIONS = (
    "What is the maximum size of an SQLite database?",
    "Until which year will SQLite be supported?",
    "Is SQLite in the public domain?",
)


def sqlite_library() -> Library:
    """Opens SmolLM2-135M-Instruct with the documentation of SQLite."""
    import smollm2

    model, tokenizer = smollm2.load(smollm2.make())
    store = Datastore(SQLITE / "sqlite-docs")
    library = Library.of(smollm2.NAME, model, tokenizer, [store], PROMPTS)
    library.questions = QUESTIONS
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="the address to listen on (default: this machine only)")
    parser.add_argument(
        "--port", type=int, help="the port to listen on (default: the first free port from 7860)"
    )
    options = parser.parse_args()
    try:
        library = sqlite_library()
    except ConnectionError as error:
        raise SystemExit(str(error)) from None
    with contextlib.suppress(KeyboardInterrupt):
        launch(
            library,
            host=options.host,
            port=options.port,
            on_ready=lambda url: print(
                f"Open {url} in a browser. Ctrl-C ends the page.", flush=True
            ),
        )


if __name__ == "__main__":
    main()
