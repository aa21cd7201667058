"""The exceptions that this package raises on purpose.

Each message says what is wrong and what to do next; the command line prints it as its one line.
"""

from knn_logits.printable import printable

# The most characters that a message has.
_MAX_CHARACTERS = 1000


class KNNLogitsError(Exception):
    """Every error that this package raises on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__())  # anybody may have chosen the names in it


class ConfigError(KNNLogitsError, ValueError):
    """A setting is out of its range, or two settings exclude each other."""


class CorpusError(KNNLogitsError):
    """A corpus is missing, empty, or cannot be read."""


class ModelError(KNNLogitsError):
    """A model has no place for the key, or runs in a mode that kNN cannot follow."""


class DatastoreError(KNNLogitsError):
    """A folder is no datastore, or cannot be written as one.

    The message may quote a file, so it is cut where that makes it long.
    """

    def __init__(self, message: str = "") -> None:
        cut = len(message) > _MAX_CHARACTERS
        super().__init__(f"{message[:_MAX_CHARACTERS]} ..." if cut else message)


class IncompleteError(DatastoreError):
    """A datastore's build did not finish."""


class DamagedError(DatastoreError):
    """A datastore's file differs from what its manifest says."""


class MismatchError(DatastoreError):
    """A datastore was built by another model, layer, precision or tokenizer."""


class BusyError(DatastoreError):
    """Another process is writing the datastore."""


class HubError(DatastoreError):
    """A datastore cannot be fetched from the Hub, or sent to it."""


class StorageError(DatastoreError):
    """A file cannot be written: the disk is full, fails, or is not writable."""


class SearchError(KNNLogitsError):
    """An index cannot be built, opened or searched as asked."""


class UnreachableError(KNNLogitsError):
    """Machines of a cluster are not there, or do not answer."""


class TraceError(KNNLogitsError):
    """A trace was asked for an output that it did not see."""


class LimitError(KNNLogitsError):
    """A request asks for more than its limits, or was stopped."""


class MissingDependencyError(KNNLogitsError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""
