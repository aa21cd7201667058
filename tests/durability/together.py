"""Runs several of the scripts beside this one, one after another, each in a fork of this process.

    python tests/durability/together.py kills=11 hostile=19 extremes=11

A short run of a script takes no longer than the import of PyTorch, which happens once here.
"""

import importlib
import os
import sys
import traceback

import kills


def run(name, number, seed):
    """Whether nothing went wrong in so many rounds of a script."""
    counts, wrong = importlib.import_module(name).run(number, seed, *_MORE.get(name, ()))
    print(f"{name}: {dict(sorted(counts.items()))}")
    print(f"{name}: failures: {len(wrong)}", flush=True)
    return not wrong


_MORE = {"kills": (kills.KINDS,)}


def main(wanted, seed=7):
    status = 0
    # The Hub's client reads where the Hub is when it is imported.
    with kills.a_hub():
        for name in wanted:
            importlib.import_module(name)
        for name, number in wanted.items():
            child = os.fork()
            if not child:
                code = 1
                try:
                    code = not run(name, number, seed)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            status |= os.waitpid(child, 0)[1] != 0
    return status


if __name__ == "__main__":
    sys.exit(main({name: int(n) for name, _, n in (one.partition("=") for one in sys.argv[1:])}))
