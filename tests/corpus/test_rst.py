"""reStructuredText: roles and links read as on the page, code stays, lines keep their numbers."""

import io

import pytest
from corpus_files import text_of
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.corpus.parsers import rst
from knn_logits.corpus.rows import Schema


def shown(text):
    return "".join(block.text for block in rst.read(io.BytesIO(text.encode()), Schema()))


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        (":exc:`~werkzeug.exceptions.NotFound` is raised.", "NotFound is raised."),
        ("Call :py:meth:`Flask.route` (:func:`!abort`).", "Call Flask.route (abort)."),
        ("See :meth:`app.logger <flask.Flask.logger>`.", "See app.logger."),
        ("See :meth:`.Flask.run` and :doc:`/logging`.", "See Flask.run and /logging."),
        ("Read `the long\nlist <https://example.org/a_b>`__ first.", "Read the long\nlist first."),
        ("See `the list\n<https://example.org>`_.\nNext.", "See the list\n.\nNext."),
        ("``:ref:`x` `` or `x`_ or :field: `x`.", "``:ref:`x` `` or `x`_ or :field: `x`."),
        (":math:`a < b`", "a < b"),
        (":param tons: The load.", ":param tons: The load."),
        (".. note::\n\n    Use :func:`abort`.", ".. note::\n\n    Use abort."),
        ("Write::\n\n    :func:`a`\n\n    :func:`b`\n\n:func:`c`",
         "Write::\n\n    :func:`a`\n\n    :func:`b`\n\nc"),
        (".. code-block:: rst\n   :caption: x\n\n   :func:`a`\n\n:func:`c`",
         ".. code-block:: rst\n   :caption: x\n\n   :func:`a`\n\nc"),
    ],
)  # fmt: skip
def test_markup_is_read_as_it_is_shown(tmp_path, markup, expected):
    assert text_of(tmp_path / "a.rst", markup) == expected
    assert text_of(tmp_path / "a.txt", markup) == markup


@pytest.mark.parametrize("unit", [":a.", ":a", "`a <", ":a:`x", "` <a\n", "a::\n"])
def test_a_long_run_of_what_may_begin_markup_is_read_at_once(unit):
    # The first took 12 seconds for a tenth of this, and a hundred times as long for all.
    assert shown(unit * 160_000 + "\nend").endswith("\nend")


@given(st.lists(st.text(":`~<>_.\n ab", max_size=30) | st.sampled_from([":a:`", "`a\n<b>`_", "`"])))
def test_all_lines_stay(pieces):
    text = "".join(pieces)
    assert shown(text).count("\n") == text.count("\n")
