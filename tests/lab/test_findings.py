"""How the report writes its numbers."""

import pytest

from knn_logits.lab.ablation.findings import apart


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((55.04, 96.71), ["55.0", "96.7"]),
        ((9.6567, 9.6631), ["9.657", "9.663"]),
        ((9.6567, 9.6631, 10.43), ["9.657", "9.663", "10.430"]),
        ((9.65, 9.65, 12.1), ["9.7", "9.7", "12.1"]),
        ((1.00001, 1.00002), ["1.0000", "1.0000"]),
    ],
)
def test_numbers_that_differ_are_told_apart(values, shown):
    assert apart(*values) == shown
