"""CSV: each row names its cells, and what is no clean table stays as it is."""

import pytest
from corpus_files import text_of

PRICES = (
    "Article,Price,Delivery\r\n"
    '"Hose clamp, stainless",4.20 EUR,2 days\r\n'
    "Brass key,7.80 EUR,\r\n"
    '"A cover\nin two parts",89.00 EUR,3 weeks\r\n'
    "Hot knife,149.00 EUR,6 weeks"
)
NAMED = (
    "Article,Price,Delivery\n"
    "- Article: Hose clamp, stainless; Price: 4.20 EUR; Delivery: 2 days\n"
    "- Article: Brass key; Price: 7.80 EUR\n"
    "- Article: A cover in two parts; Price: 89.00 EUR; Delivery: 3 weeks\n\n"
    "- Article: Hot knife; Price: 149.00 EUR; Delivery: 6 weeks"
)


def test_a_row_names_its_cells_and_keeps_its_line(tmp_path):
    found = text_of(tmp_path / "prices.csv", PRICES)
    assert found.rstrip("\n") == NAMED
    line = PRICES.replace("\r\n", "\n").split("\n").index("Hot knife,149.00 EUR,6 weeks")
    assert found.split("\n")[line].startswith("- Article: Hot knife")


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters(tmp_path, delimiter):
    content = delimiter.join(("a", "b")) + "\n" + delimiter.join(("1,5", "x")) + "\n"
    assert text_of(tmp_path / "a.tsv", content).split("\n")[1] == "- a: 1,5; b: x"


@pytest.mark.parametrize(
    "content",
    [
        "1,2\n3,4\n",  # nothing names the columns
        "a,a\n3,4\n",
        "a,\n3,4\n",
        "a,b\n",
        "a,b\n1,2,3\n",
        'a,b\n1,"2\n',  # a quotation that does not end
        'a,b\n1,"2"3\n',
        "a,b\n1,%s\n" % ("x" * (1 << 18)),
        "a,b" * (1 << 19),
        "Only text, in a file\nwith a wrong name.\n",
    ],
)
def test_what_is_no_table_stays_as_it_is(tmp_path, content):
    assert text_of(tmp_path / "a.csv", content) == content
