"""What `ask` shows of a passage: the part that has the quotation, with no word cut."""

import pytest

from knn_logits.ask.answer import Answer, PassageEffect
from knn_logits.cli.ask import passages_shown

QUOTED = "The hooks are checked by Maira."
FILLER = " ".join(f"Crate {number} was lifted." for number in range(10, 50))


def shown(text):
    passage = PassageEffect("s", "d", "Title", None, None, text, QUOTED, True, None, (0, 1))
    answer = Answer("Q?", QUOTED, answered=True, quoted=True, passages=[passage])
    (entry,) = passages_shown(answer)
    return entry.removeprefix("[Title]\n")


@pytest.mark.parametrize("before", ["", f"{FILLER} ", f"{FILLER * 5} "])
@pytest.mark.parametrize("after", ["", f" {FILLER}"])
def test_the_quotation_is_in_what_is_shown(before, after):
    text = f"{before}{QUOTED}{after}"
    part = shown(text)
    assert QUOTED in part
    assert len(part) <= 402
    assert set(part.strip("…").split()) <= set(text.split())
    assert part.startswith("…") == bool(before)
    assert part.endswith("…") == bool(after)


@pytest.mark.parametrize("text", [QUOTED, "word", "字" * 2000, QUOTED + "字" * 2000])
def test_a_short_passage_and_one_without_blanks(text):
    assert shown(text).strip("…") in text
