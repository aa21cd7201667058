"""CSV: rows whose cells are named, whatever stands around the table, and what is no table."""

import pytest
from corpus_files import blocks_of, places_of, read, text_of, write

PRICES = (
    "Article,Price,Delivery\r\n"
    '"Hose clamp, stainless",4.20 EUR,2 days\r\n'
    "Brass key,7.80 EUR,\r\n"
    '"A cover\nin two parts",89.00 EUR,3 weeks\r\n'
    "Hot knife,149.00 EUR,6 weeks"
)
NAMED_ROWS = (
    "Article,Price,Delivery\n"
    "- Article: Hose clamp, stainless; Price: 4.20 EUR; Delivery: 2 days\n"
    "- Article: Brass key; Price: 7.80 EUR\n"
    "- Article: A cover in two parts; Price: 89.00 EUR; Delivery: 3 weeks\n"
    "- Article: Hot knife; Price: 149.00 EUR; Delivery: 6 weeks\n"
)


def test_a_row_names_its_cells_and_its_line(tmp_path):
    ((document,), _) = read(write(tmp_path / "prices.csv", PRICES))
    assert document.text == NAMED_ROWS
    assert [kind for kind, _ in blocks_of(document)] == ["th", "tr", "tr", "tr", "tr"]
    assert [name for _, name, _ in places_of(document)] == [f"line {n}" for n in (1, 2, 3, 4, 6)]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters(tmp_path, delimiter):
    content = delimiter.join(("a", "b")) + "\n" + delimiter.join(("1,5", "x")) + "\n"
    assert text_of(tmp_path / "a.tsv", content).split("\n")[1] == "- a: 1,5; b: x"


@pytest.mark.parametrize(
    "content",
    [
        "sep=;\nPlace;Open\nOslo;9\nBergen;8\n",
        "Opening hours of our shops\n\nPlace;Open\nOslo;9\nBergen;8\n",
        "Opening hours;;\nPlace;Open\nOslo;9\nBergen;8\n",
        "Place;Open;\nOslo;9;\nBergen;8;\n",
        "Place;Open\nOslo;9;\nBergen;8;\nTotal 2\n",
        '"Place";"Open"\n"Oslo";"9"\n"Bergen";"8"\n"Lom; Vik"\n',
        'Place,Open\n"Oslo",9\nBergen,8\n"Lom; Vik; Ål, Gol",7\n',
        "Shops, their hours, heads, and telephones\nPlace,Open,Head\nOslo,9,\nBergen,8,\n",
    ],
)
def test_what_stands_around_a_table(tmp_path, content):
    rows = text_of(tmp_path / "a.csv", content).split("\n")
    assert "- Place: Oslo; Open: 9" in rows
    assert "- Place: Bergen; Open: 8" in rows


def test_years_name_columns_and_a_short_row_has_no_names(tmp_path):
    content = "Country,2022,2023\nNorway,1.5,2.5\nSweden,3.5,4.5\nTotal,7\n"
    assert text_of(tmp_path / "a.csv", content) == (
        "Country,2022,2023\n"
        "- Country: Norway; 2022: 1.5; 2023: 2.5\n"
        "- Country: Sweden; 2022: 3.5; 2023: 4.5\n"
        "- Total; 7\n"
    )


def test_the_last_cells_of_a_row_may_be_missing(tmp_path):
    """As in the tables of the package distro-info-data."""
    content = "No,Name,Made,Out,End,Late\n7,Wheezy,11,13,16,18\n14,Forky,25\n,Sid,93\nTotal,3\n"
    assert text_of(tmp_path / "a.csv", content).split("\n", 1)[1] == (
        "- No: 7; Name: Wheezy; Made: 11; Out: 13; End: 16; Late: 18\n"
        "- No: 14; Name: Forky; Made: 25\n"
        "- Name: Sid; Made: 93\n"
        "- Total; 3\n"
    )


def test_the_names_of_columns_are_bounded(tmp_path):
    name = "n" * 90_000
    text = text_of(tmp_path / "a.csv", f"{name},b\n" + "1,2\n" * 22_500)
    assert len(text) < 100 * 180_000


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
        "a,b" * (1 << 19),
        "Only text, in a file\nwith a wrong name.\n",
        f"It goes on {'and on ' * 9}, stops, turns, waits\nA, b, c\nA, b, c, d\n",
    ],
)
def test_what_is_no_table_stays_as_it_is(tmp_path, content):
    notes = []
    documents, skipped = read(
        write(tmp_path / "a.csv", content), on_note=lambda _, note: notes.append(note)
    )
    assert ([one.text for one in documents], skipped) == ([content], [])
    assert notes == ["read as plain text: no first row names the columns of a table"]
