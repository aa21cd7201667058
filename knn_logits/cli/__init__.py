"""The command `knn-logits`: parse, call, print."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line. A failure prints one line on stderr and exits with status 1."""
    from knn_logits.cli.app import command
    from knn_logits.cli.terminal import listen
    from knn_logits.errors import KNNLogitsError

    listen()
    try:
        command()
    except KNNLogitsError as error:
        _fail(str(error))
    except Exception as error:
        if os.environ.get("KNN_LOGITS_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            reason = f"{error.filename} cannot be used: {error.strerror}"
            _fail(f"{reason}; check its name and its permissions")
        reason = f"unexpected {type(error).__name__}: {error}"
        _fail(f"{reason}; set KNN_LOGITS_DEBUG=1 to see where, and please report it")


def _fail(message: str) -> None:
    from knn_logits.cli.terminal import status, tell

    status.clear()
    tell(message, style=None)
    sys.exit(1)
