"""Pieces of work on actors that are lost, by a stand-in for Ray that says what happens when."""

from types import SimpleNamespace

import pytest

from knn_logits.errors import ConfigError, UnreachableError
from knn_logits.ray.workers import Workers


class Lost(Exception):
    """Stands for every error of Ray itself."""


class TaskFailed(Lost):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Late(Lost, TimeoutError):
    pass


class Ray:
    """Calls end in the order in which they were made, slow ones after all others."""

    exceptions = SimpleNamespace(GetTimeoutError=Late, RayTaskError=TaskFailed, RayError=Lost)

    def __init__(self):
        self.waits = 0

    def wait(self, refs, num_returns, timeout):
        self.waits += 1
        assert self.waits < 1000, "the loop waits for what never comes"
        ready = sorted((ref for ref in refs if ref.answer is not None), key=lambda ref: ref.slow)
        ready = ready[:1]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref, timeout):
        return ref.answer()

    def kill(self, actor):
        actor.ended = True


class Ref:
    """A call's result; None stands for an answer that never comes."""

    def __init__(self, answer, slow=False):
        self.answer, self.slow = answer, slow


class Actor:
    """Does a piece by `work`. One that has no room never says that it is ready."""

    def __init__(self, work, room=True, equal=True, slow=lambda piece: False):
        self.ended = False
        self.ready = SimpleNamespace(remote=lambda: Ref((lambda: equal) if room else None))
        self.work = SimpleNamespace(remote=lambda piece: Ref(lambda: work(piece), slow(piece)))


def loses(piece):
    raise Lost("gone")


def test_results_come_in_the_pieces_order():
    ray = Ray()
    with Workers(ray, lambda: Actor(lambda piece: piece * 10), 3) as workers:
        assert list(workers.results(iter(range(20)))) == [piece * 10 for piece in range(20)]
    with Workers(ray, lambda: Actor(lambda piece: piece), 3) as workers:
        assert list(workers.results(iter([]))) == []


@pytest.mark.parametrize("pieces", [1, 7, 40])
def test_a_lost_piece_holds_up_the_others_and_there_is_no_room_for_another_actor(pieces):
    """All others have worked ahead as far as they may when the lost piece is done at last."""
    lost, actors = [], []

    def start():
        if len(actors) < 3:
            actors.append(Actor(work, slow=lambda piece: piece in lost))
        else:
            actors.append(Actor(work, room=False))
        return actors[-1]

    def work(piece):
        if piece == 0 and not lost:
            lost.append(piece)
            raise Lost("gone")
        return piece

    with Workers(Ray(), start, 3) as workers:
        assert list(workers.results(iter(range(pieces)))) == list(range(pieces))
    assert lost == [0]
    assert len(actors) == 4
    assert all(actor.ended for actor in actors)


def test_a_piece_that_is_lost_again_and_again_is_an_error():
    with (
        Workers(Ray(), lambda: Actor(loses), 2) as workers,
        pytest.raises(UnreachableError, match="failed 5 times because its process died"),
    ):
        list(workers.results(iter(range(1))))


def test_an_error_of_the_work_is_passed_on():
    def fails(piece):
        raise TaskFailed(ConfigError("wrong setting"))

    with (
        Workers(Ray(), lambda: Actor(fails), 2) as workers,
        pytest.raises(ConfigError, match="wrong setting"),
    ):
        list(workers.results(iter(range(3))))


def test_no_room_for_any_actor_is_an_error():
    with (
        Workers(Ray(), lambda: Actor(loses, room=False), 2, patience=30.0) as workers,
        pytest.raises(UnreachableError, match="no machine of the cluster had room"),
    ):
        list(workers.results(iter(range(3))))


def test_a_worker_that_rounds_in_another_way_is_reported_once(caplog):
    with Workers(Ray(), lambda: Actor(lambda piece: piece, equal=False), 3) as workers:
        assert list(workers.results(iter(range(9)))) == list(range(9))
    assert caplog.text.count("a different CPU or GPU type") == 1
