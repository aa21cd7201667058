"""Stops work at a point of its progress, as Ctrl-C does."""


class Stop(Exception):
    pass


def stopping(at, phase="keys"):
    """Makes a progress callback that stops the work at a point of a phase."""

    def progress(now, done, total):
        if now == phase and done >= at:
            raise Stop

    return progress
