"""Gives every parser changed inputs, each in a process of limited memory and time.

    python tests/fuzz/fuzz.py --number 100000
    python tests/fuzz/fuzz.py --only pdf,gzip --number 5000 --seed 3

A number of inputs is shared by the parsers. An input that ends in a traceback, a crash, a hang of
ten seconds or two gigabytes is written into `crashers`, which the tests read.
"""

import argparse
import sys
import tempfile

import parsers
import running

# A child is replaced after this number of inputs, so that nothing adds up.
_INPUTS = 2000


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--number", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="")
    given = options.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as place:
        names = tuple(name for name in given.only.split(",") if name)
        targets = [one for one in parsers.every(place) if not names or one.name.startswith(names)]
        each = -(-given.number // len(targets))
        for target in targets:
            for first in range(0, each, _INPUTS):
                number = min(_INPUTS, each - first)
                counts, bad = running.fuzz(target, number, given.seed, first)
                wrong += bad
                print(f"{target.name}: {dict(counts.most_common())}", *bad, sep="\n", flush=True)
    print(f"failures: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
