"""The cell that a question asks for: that of the column it names, unless it names both."""

import pytest

from knn_logits.ask.cells import cell_of_question

ROW = "Name: Luc Delacroix; Office: B-220; Birthday: 1966-01-19"
LEAD, FARE = "| Route | Departure | Fare |", "| Morvik - Stensund | 07:40 | EUR 14 |"


@pytest.mark.parametrize(
    ("question", "lead", "sentence", "cell"),
    [
        ("Which office does Luc Delacroix have?", "", ROW, "B-220"),
        ("When is the birthday of Luc Delacroix?", "", ROW, "1966-01-19"),
        ("What are the office and the birthday of Luc?", "", ROW, None),
        ("Who has office B-220?", "", ROW, None),
        ("How old is Luc Delacroix?", "", ROW, None),
        ("What is the fare to Stensund?", LEAD, FARE, " EUR 14 "),
        ("What is the fare to Stensund?", "The route | The fare", FARE, None),
        ("What is the fare to Stensund?", "Route  The fare", "To Stensund  EUR 14", " EUR 14"),
        ("What is the fare?", "", "The fare is 14 euros; it was: 12.", None),
        ("What is the fare?", "", "", None),
    ],
)
def test_the_cell_under_the_name_of_its_column(question, lead, sentence, cell):
    span = cell_of_question(question, lead, sentence, "english")
    assert (span and sentence[slice(*span)]) == cell
