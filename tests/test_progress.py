"""Work that says nothing of itself, and bars that move all the same."""

import threading

import pytest

from knn_logits import progress
from knn_logits.progress import no_progress, while_running


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
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_REPORTS", 0.001)
    told = Told(fewest=20)
    assert while_running(told, "training", lambda: told.enough.wait(60)) is True
    assert set(told) == {("training", 0, None)}


def test_what_the_work_raises_is_raised():
    def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        while_running(Told(), "training", fails)


def test_what_the_progress_raises_ends_the_wait(monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_REPORTS", 0.001)
    ended, told = threading.Event(), Told()

    def stops(phase, done, total):
        told(phase, done, total)
        if len(told) > 1:
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            while_running(stops, "training", lambda: ended.wait(60))
    finally:
        ended.set()


def test_without_a_listener_the_work_stays_in_its_thread():
    here = threading.current_thread()
    assert while_running(no_progress, "training", threading.current_thread) is here
