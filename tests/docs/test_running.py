"""What the documentation shows is run: each page's commands and code, in the order they stand in.

Left out are commands that serve until they are ended, or that need another machine.
`test_blocks.py` checks those against the command line all the same. A block that cannot be run says
so in a comment before it.
"""

import json
import re
import shutil

import pytest

from docs.pages import NAMES, ROOT, blocks_of, commands_of

# Commands that wait for visitors, clients or a person, or that need the Hub.
NOT_RUN = {"app", "serve", "chat", "push", "pull", "import"}
RUNNING = [
    name
    for name in NAMES
    if any(
        block.runs
        and (
            block.language == "python"
            or (
                block.language == "bash"
                and any(one[0] == "knn-logits" for one in commands_of(block))
            )
        )
        for block in blocks_of(name)
    )
]


@pytest.mark.parametrize("page", RUNNING)
def test_a_page_runs_from_its_first_block_to_its_last(page, place, names, run, capsys):
    printed = ""
    for block in blocks_of(page):
        if not block.runs:
            continue
        if block.language == "python":
            exec(compile(block.code, str(block), "exec"), names)
            printed = capsys.readouterr().out
        elif block.language == "bash":
            for words in commands_of(block):
                if words[0] == "knn-logits" and words[1] not in NOT_RUN:
                    printed = ran(run, words, block)
        elif block.mark == "printed":
            missing = [line for line in lines_of(block.code) if line not in lines_of(printed)]
            assert not missing, f"{block}: not printed any more: {missing}\n\n{printed}"


def ran(run, words, block):
    if words[1] == "build" and "--out" in words:
        # The folder's own datastore of that name, which other pages take for granted.
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    done = run(*words[1:])
    assert done.code == 0, f"{block}: {' '.join(words)}: {done.err}"
    return done.out


def lines_of(text):
    """Lines without what may differ between machines: numbers with a point, shares, spaces."""
    masked = re.sub(r"\d+(?:\.\d+)?%|\d+\.\d+", "N", text)
    return [" ".join(line.split()) for line in masked.splitlines() if line.strip()]


def test_the_gallery_has_all_questions_of_the_demo():
    (gallery,) = [block for block in blocks_of("docs/gallery.md") if block.language == "text"]
    answers = gallery.code.split("\n\n> ")
    lines = (ROOT / "datastores/sqlite/questions.jsonl").read_text("utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    assert [one.splitlines()[0].removeprefix("> ") for one in answers] == questions
    right = sum("\n  right: " in one for one in answers)
    assert gallery.code.strip().endswith(f"\n{right} of {len(questions)} right.")


def test_what_is_not_run_says_why():
    marks = [block.mark for name in NAMES for block in blocks_of(name) if not block.runs]
    assert marks
    assert all(re.fullmatch(r"checked, not run: \S.+", mark) for mark in marks)
    assert (ROOT / "tests" / "hub").is_dir()
