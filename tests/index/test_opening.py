"""Open indexes, and other objects of a datastore, which are made once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from knn_logits.index.opening import Indexes

PATIENCE = 180


def test_nobody_waits_for_an_object_that_another_makes(store):
    indexes, begun, go = Indexes(), threading.Event(), threading.Event()

    def slow():
        begun.set()
        go.wait(PATIENCE)
        return object()

    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(indexes.once, store, "slow", slow) for _ in range(2)]
        assert begun.wait(PATIENCE)
        assert indexes.once(store, "quick", lambda: 3) == 3
        assert not any(one.done() for one in made)
        go.set()
    assert made[0].result() is made[1].result()


def test_an_object_that_could_not_be_made_is_made_again(store):
    indexes = Indexes()

    def broken():
        raise OSError

    for make in (broken, broken, lambda: 3):
        try:
            assert indexes.once(store, "this", make) == 3
        except OSError:
            assert make is broken
