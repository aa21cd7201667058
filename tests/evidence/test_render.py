"""How a trace is printed for people."""

import io

from rich.console import Console

from knn_logits import Trace
from knn_logits.evidence.render import show
from knn_logits.evidence.trace import DocumentShare, Rival, SequenceTrace, TokenTrace


def test_only_outvoted_numbers_and_names_are_listed():
    def against(word, other):
        rival = Rival(other, 0.99, DocumentShare("s", "b", "The b", None, 0.99))
        return TokenTrace(word, 0, 4e-7, 8e-7, 0.0, 0.5, 0.0, by_memory=rival)

    words = [against(" until", " and"), against(" 12", " 19"), against(" Hans", " Mustafa")]
    console = Console(file=io.StringIO(), width=200)
    show(Trace([SequenceTrace("", words)]), 3, console)
    lines = [line for line in console.file.getvalue().splitlines() if "would have written" in line]
    assert [line.split(":")[0] for line in lines] == ["12", "Hans"]


def test_words_that_one_passage_replaces_make_one_line():
    rival = Rival(" two cats", 0.5, DocumentShare("s", "b", "The b", None, 0.5), entry=3)
    words = [
        TokenTrace(text, 0, 0.1, 0.1, 0.0, 0.5, 0.0, by_memory=rival) for text in (" ten", " dogs")
    ]
    console = Console(file=io.StringIO(), width=200)
    show(Trace([SequenceTrace("", words)]), 3, console)
    lines = [line for line in console.file.getvalue().splitlines() if "the memory says" in line]
    assert len(lines) == 1
    assert lines[0].startswith("ten dogs: the memory says 'two cats'")
