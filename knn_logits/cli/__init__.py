"""The command `knn-logits`: parse, call, print."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line. A failure prints one line on stderr and exits with status 1."""
    try:
        _run()
    except (KeyboardInterrupt, SystemExit) as end:
        # Ctrl-C, of which typer makes an exit with this status.
        if getattr(end, "code", 130) != 130:
            raise
        from knn_logits.cli.terminal import status, tell

        tell(f"stopped{status.advice}", style=None)
        sys.exit(130)


def _run() -> None:
    from knn_logits.cli.app import command
    from knn_logits.cli.terminal import listen, tell
    from knn_logits.errors import KNNLogitsError

    listen()
    try:
        command()
    except KNNLogitsError as error:
        tell(str(error), style=None)
        sys.exit(1)
    except OSError as error:
        if not (error.filename and error.strerror):
            raise
        reason = f"{error.filename} cannot be used: {error.strerror}"
        tell(f"{reason}; check its name and its permissions", style=None)
        sys.exit(1)
