import pytest

from knn_logits.index.choice import (
    EXACT_UP_TO,
    choose_factory,
    choose_lists,
)

PLENTY = 1 << 50


def test_few_entries_are_searched_exactly():
    for entries in (0, 1, EXACT_UP_TO):
        assert choose_factory(entries, 768, 0) == "exact"
    assert choose_factory(EXACT_UP_TO + 1, 768, PLENTY) != "exact"


@pytest.mark.parametrize("codes", [64, 48, 32, 16, 8])
def test_product_codes_are_the_largest_that_fit(codes):
    entries, dim = 1_000_000, 768
    memory = 2 * entries * (codes + 8)
    assert choose_factory(entries, dim, memory) == f"IVF2048,PQ{codes}"
    assert choose_factory(entries, dim, memory - 2) != f"IVF2048,PQ{codes}"


def test_product_codes_divide_the_keys_length():
    memory = 2 * 1_000_000 * (64 + 8)
    assert choose_factory(1_000_000, 80, memory).endswith("PQ16")
    assert choose_factory(1_000_000, 100, memory).endswith("RaBitQ")


def test_one_bit_codes_where_nothing_else_fits():
    assert choose_factory(1_000_000, 768, 1000).endswith(",RaBitQ")


def test_lists_grow_with_the_root_of_the_entries():
    found = [choose_lists(10**power) for power in range(13)]
    assert found == sorted(found)
    assert all(one & (one - 1) == 0 for one in found)
    assert choose_lists(0) == choose_lists(1) == 64
    assert choose_lists(1_000_000) == 2048
    # A list of two million entries would be five times as long in 2048 lists.
    assert choose_lists(2_000_000) == 4096
    assert choose_lists(1 << 60) == 1 << 16
