"""Replicas of shards, without a cluster: those that are lost, silent, or there again."""

import pytest

from knn_logits.errors import DatastoreError, SearchError, UnreachableError
from knn_logits.ray.searching import share_of_a_cpu
from knn_logits.ray.sharded import Replicas


class Group:
    """Two replicas of one shard in this process. A test says what state each is in."""

    def __init__(self, count=2, **settings):
        self.states = ["there"] * count
        self.calls = []
        self.replicas = Replicas(self.ask, self.back, count, **settings)

    def ask(self, number, replica, method, *given):
        self.calls.append(replica)
        return lambda seconds: self.answer(replica, f"{method} {replica}")

    def back(self, number, replica):
        return lambda seconds: self.answer(replica, True, waits=True)

    def answer(self, replica, content, waits=False):
        state = self.states[replica]
        if state == "silent" or (state == "lost" and waits):
            raise TimeoutError
        if state == "lost":
            raise UnreachableError("lost")
        if isinstance(state, Exception):
            raise state
        return content

    def search(self, seconds=60.0):
        return self.replicas.ask(0, "search")(seconds)


def test_the_first_replica_answers():
    group = Group()
    assert [group.search(), group.search()] == ["search 0", "search 0"]
    assert group.calls == [0, 0]


def test_the_work_of_a_lost_replica_goes_to_its_twin(caplog):
    # A test that had to wait for the lost one would take an hour.
    group = Group(silence=3600.0)
    group.states[0] = "lost"
    assert [group.search(3600.0), group.search(3600.0)] == ["search 1", "search 1"]
    # It is not asked again while it is away.
    assert group.calls == [0, 1, 1]
    assert caplog.text.count("replica 0 of shard 0 is lost") == 1
    group.states[0] = "there"
    assert group.search() == "search 0"
    assert "replica 0 of shard 0 is back" in caplog.text


def test_a_silent_replica_gets_company():
    group = Group(silence=0.0)
    group.states[0] = "silent"
    assert [group.search(), group.search()] == ["search 1", "search 1"]
    assert group.calls == [0, 1, 1]
    group.states[0] = "there"
    assert group.search() == "search 0"


def test_a_slow_replica_may_answer_first():
    group = Group(silence=0.0)
    group.states = ["silent", "silent"]
    answer = group.replicas.ask(0, "search")
    with pytest.raises(TimeoutError):
        answer(0.1)
    assert group.calls == [0, 1]
    group.states[0] = "there"
    assert answer(60.0) == "search 0"


def test_all_replicas_are_lost_until_one_is_back():
    group = Group()
    group.states = ["lost", "lost"]
    answer = group.replicas.ask(0, "search")
    with pytest.raises(TimeoutError, match="no replica has answered"):
        answer(0.1)
    # A later call finds none, and waits as well.
    later = group.replicas.ask(0, "search")
    with pytest.raises(TimeoutError):
        later(0.0)
    group.states[1] = "there"
    assert (answer(60.0), later(60.0)) == ("search 1", "search 1")


def test_a_replica_that_cannot_be_opened_again_is_left_alone(caplog):
    group = Group()
    group.states[0] = "lost"
    assert group.search() == "search 1"
    group.states[0] = DatastoreError("no such folder")
    assert [group.search(), group.search()] == ["search 1", "search 1"]
    assert caplog.text.count("cannot be reopened: no such folder") == 1


def test_an_error_of_the_search_itself_is_passed_on():
    group = Group()
    group.states[0] = SearchError("wrong queries")
    with pytest.raises(SearchError, match="wrong queries"):
        group.search()
    assert group.calls == [0]


@pytest.mark.parametrize(
    ("cpus", "actors", "share"),
    [([6], [4], 1.0), ([2], [4], 0.5), ([2], [5], 0.3333), ([16, 2], [4, 4], 0.5), ([1], [0], 1.0)],
)
def test_actors_share_processors(cpus, actors, share):
    assert share_of_a_cpu(cpus, actors) == share
    for there, wanted in zip(cpus, actors, strict=True):
        assert wanted * share <= there
