"""The command `knn-logits`: parse, call, print."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; an expected failure is one line on stderr and the exit status 1."""
    from knn_logits.cli.app import app
    from knn_logits.errors import KNNLogitsError

    try:
        app()
    except KNNLogitsError as error:
        print(f"knn-logits: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        sys.stderr.close()
        sys.exit(1)
