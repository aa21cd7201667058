"""Work that says nothing of itself, and bars that move all the same."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import progress
from knn_logits.progress import WHOLE, no_progress, while_running


class Told(list):
    """Steps that were told; `enough` is set when there are some."""

    def __init__(self, fewest=1):
        self.enough = threading.Event()
        self.fewest = fewest

    def __call__(self, phase, done, total):
        self.append((phase, done, total))
        if len(self) >= self.fewest:
            self.enough.set()


def test_a_bar_moves_while_silent_work_is_done(monkeypatch):
    monkeypatch.setattr(progress, "_EACH", 0.001)
    told = Told(fewest=20)
    assert while_running(told, "training", lambda: 0.01, lambda: told.enough.wait(60)) is True
    assert {(phase, total) for phase, _, total in told} == {("training", WHOLE)}
    steps = [done for _, done, _ in told]
    assert (steps[0], steps[-1]) == (0, WHOLE)
    assert steps == sorted(steps)


def test_what_the_work_raises_is_raised():
    def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        while_running(Told(), "training", lambda: 1.0, fails)


def test_what_the_progress_raises_ends_the_wait(monkeypatch):
    monkeypatch.setattr(progress, "_EACH", 0.001)
    ended = threading.Event()

    def stops(phase, done, total):
        if done:
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            while_running(stops, "training", lambda: 0.01, lambda: ended.wait(60))
    finally:
        ended.set()


def test_without_a_listener_the_work_stays_in_its_thread():
    here = threading.current_thread()
    assert while_running(no_progress, "training", lambda: 1.0, threading.current_thread) is here


@given(passed=st.floats(0.0, 20.0), more=st.floats(0.01, 5.0))
def test_a_share_grows_and_never_reaches_the_end(passed, more):
    assert 0.0 <= progress._share(passed) < progress._share(passed + more) < 1.0
