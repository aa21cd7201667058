"""Each operation on the disk fails once, in each job: what readers see, and how it goes on."""

import errno
import io
import itertools
import os
import shutil

import pytest
import stores

from knn_logits.errors import StorageError
from knn_logits.store import files

OPERATIONS = ["write", "sync", "rename", "unlink"]


JOBS = stores.Jobs(documents=6, shard_bytes=6000, index="IVF2,SQ8")


@pytest.fixture(scope="module", autouse=True)
def _small_steps():
    from knn_logits.engine import windows

    before = windows._BUFFER_BYTES
    windows._BUFFER_BYTES = 4096
    yield
    windows._BUFFER_BYTES = before


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What each job is compared with.

    A folder before it, what readers see before it and after it, its files after it, and how often
    it calls each operation.
    """
    found = {}
    for kind in JOBS.KINDS:
        before, after = (tmp_path_factory.mktemp(kind) / name for name in ("before", "after"))
        JOBS.prepare(kind, before)
        copied(before, after)
        with pytest.MonkeyPatch.context() as patch:
            counting = {one: Failing(patch, one, 0, 0, lasting=False) for one in OPERATIONS}
            JOBS.run(kind, after)
        calls = {one: counted.calls for one, counted in counting.items()}
        seen = stores.visible(before), stores.visible(after)
        found[kind] = before, *seen, stores.state(after), calls
    return found


def copied(before, folder):
    shutil.rmtree(folder, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, folder)


class Failing:
    """An operation on the disk whose n-th call fails, and all after it where `lasting`."""

    def __init__(self, monkeypatch, operation, at, number, lasting):
        self.calls = 0
        self.failed = False
        self._at, self._number, self._lasting = at, number, lasting
        if operation == "write":
            create = files.create
            monkeypatch.setattr(files, "create", lambda path: FailingFile(create(path), self))
        else:
            self._real = getattr(files, operation)
            monkeypatch.setattr(files, operation, self)

    def __call__(self, *arguments):
        self.calls += 1
        if self.calls == self._at or (self._lasting and self.calls > self._at):
            self.failed = True
            raise OSError(self._number, os.strerror(self._number))
        return self._real(*arguments)


class FailingFile(io.BufferedWriter):
    """An opened file whose writes fail when they are told to."""

    def __init__(self, file, failing):
        super().__init__(file.detach())
        self._failing = failing

    def write(self, content):
        self._failing._real = super().write
        return self._failing(content)


def attempt(kind, folder):
    """Runs a job; returns the error of the package's own that ended it, if one did."""
    try:
        JOBS.run(kind, folder)
    except StorageError as error:
        return str(error)
    return None


def disturbed(kind, operation, at, number, reference, folder, monkeypatch, *, lasting=False):
    before, old, new, end, _ = reference[kind]
    copied(before, folder)
    with monkeypatch.context() as patch:
        failing = Failing(patch, operation, at, number, lasting)
        error = attempt(kind, folder)
        assert failing.failed
    seen = stores.visible(folder)
    what = (kind, operation, at, errno.errorcode[number], error)
    assert seen in (old, new), what
    assert error is None or "\n" not in error
    # An error is said only if nothing changed. Old files that a fault leaves there undo nothing.
    assert (error is None) is (seen == new), what
    if seen == old:
        assert attempt(kind, folder) is None, what
        assert stores.state(folder) == end, what


def places(number, at_most):
    """Of the calls 1 to `number`, the first, the last, and as many between as there may be."""
    if number <= at_most:
        return range(1, number + 1)
    return sorted({round(1 + turn * (number - 1) / (at_most - 1)) for turn in range(at_most)})


@pytest.mark.parametrize("at_most", [3, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", JOBS.KINDS)
def test_a_job_goes_on_after_a_fault_at_any_call(
    kind, operation, at_most, reference, tmp_path, monkeypatch
):
    number = reference[kind][4][operation]
    kinds = itertools.cycle((errno.ENOSPC, errno.EIO))
    assert number or operation == "unlink"
    for at, error in zip(places(number, at_most), kinds, strict=False):
        folder = tmp_path / "s"
        disturbed(kind, operation, at, error, reference, folder, monkeypatch)


@pytest.mark.parametrize("at_most", [2, pytest.param(13, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", JOBS.KINDS)
@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_disk_that_stays_full(kind, operation, at_most, reference, tmp_path, monkeypatch):
    """Every call from the n-th on fails, so that nothing can be cleared up with it either."""
    number = reference[kind][4][operation]
    for at in places(number, at_most):
        folder = tmp_path / "s"
        disturbed(kind, operation, at, errno.ENOSPC, reference, folder, monkeypatch, lasting=True)
