"""Locks in a fork: those that other threads held are open, and everything goes on."""

import threading

import pytest
from forked import Fork

import knn_logits
from knn_logits import Memory
from knn_logits.locks import cached_property, new_lock


class Slow:
    """Has a property that takes until somebody lets it go on."""

    def __init__(self, going_on=None):
        self.going_on, self.begun, self.computed = going_on, threading.Event(), 0

    @cached_property
    def value(self):
        self.computed += 1
        self.begun.set()
        if self.going_on is not None:
            assert self.going_on.wait(60)
        return 7


def printed(work):
    """What a fork prints, which is given half a minute."""
    with Fork(work) as fork:
        timer = threading.Timer(30, fork.send_signal, [9])
        timer.start()
        out, errors = fork.ended()
        timer.cancel()
    assert fork.returncode == 0, errors
    return out.split()


@pytest.fixture
def busy():
    """Gives a function that calls another one in a thread; all of them may end after the test."""
    threads, going_on = [], threading.Event()

    def start(call, *arguments):
        threads.append(threading.Thread(target=call, args=arguments))
        threads[-1].start()

    yield start, going_on
    going_on.set()
    for one in threads:
        one.join(60)


class Guarded:
    def __init__(self):
        self._lock = new_lock(self)

    def hold(self, inside, going_on):
        with self._lock:
            inside.set()
            assert going_on.wait(60)


def test_a_fork_finds_a_lock_of_another_thread_open(busy):
    start, going_on = busy
    one, inside = Guarded(), threading.Event()

    def work():
        with one._lock:
            print("open" if one._lock.locked() else "no lock")

    start(one.hold, inside, going_on)
    assert inside.wait(60)
    assert one._lock.locked()
    assert printed(work) == ["open"]
    assert one._lock.locked()


def test_a_property_is_computed_once_and_without_a_lock(busy):
    start, going_on = busy
    slow, other = Slow(going_on), Slow()
    start(lambda: slow.value)
    assert slow.begun.wait(60)
    # The same property of another object does not wait, here and in a fork.
    assert other.value == other.value == 7
    assert other.computed == 1
    assert printed(lambda: print(Slow().value)) == ["7"]


def test_a_fork_answers_while_another_thread_opens_an_index(model, tokenizer, store, busy):
    start, going_on = busy
    memory, begun = Memory(model, store), threading.Event()

    def make():
        begun.set()
        assert going_on.wait(60)

    def work():
        found = knn_logits.explain(model, tokenizer, memory, "The crane lifts", exclude=["1"])
        print(len(found[0].tokens))

    start(memory._indexes.once, store, "something", make)
    assert begun.wait(60)
    assert printed(work) == ["3"]
