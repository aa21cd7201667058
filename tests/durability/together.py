"""Runs several of the scripts beside this one, one after another, each in a fork of this process.

    python tests/durability/together.py kills=11 hostile=22 writers=8

A short run of a script takes no longer than the import of PyTorch, which happens once here.
"""

import importlib
import sys

import children
import kills


def run(name, number, seed):
    """Runs this many rounds of a script, in which nothing may go wrong."""
    counts, wrong = importlib.import_module(name).run(number, seed, *_MORE.get(name, ()))
    print(f"{name}: {dict(sorted(counts.items()))}")
    print(f"{name}: failures: {len(wrong)}", flush=True)
    assert not wrong


_MORE = {"kills": (kills.KINDS,)}


def main(wanted, seed=7):
    status = 0
    # The Hub's client reads where the Hub is when it is imported.
    with kills.a_hub():
        for name in wanted:
            importlib.import_module(name)
        for name, number in wanted.items():
            status |= not children.ends_well(run, name, number, seed)
    return status


if __name__ == "__main__":
    sys.exit(main({name: int(n) for name, _, n in (one.partition("=") for one in sys.argv[1:])}))
