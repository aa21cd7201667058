"""Gives every parser changed inputs, each in a process of limited memory and time.

    python tests/fuzz/fuzz.py --number 100000
    python tests/fuzz/fuzz.py --only pdf,gzip --number 5000 --seed 3

A number of inputs is shared by the parsers. An input that ends in a traceback, a crash, a hang of
ten seconds or two gigabytes is made smaller and written into `crashers`, which the tests read.
"""

import argparse
import json
import sys
import tempfile
import time

import parsers
import running


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--number", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--only", default="")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        targets = parsers.every(place)
        names = [name for name in given.only.split(",") if name]
        targets = [
            target
            for target in targets
            if not names or any(target.name.startswith(name) for name in names)
        ]
        each, wrong, total = -(-given.number // len(targets)), 0, 0
        for target in targets:
            since = time.monotonic()
            result = running.again(target)
            result.add(running.fuzz(target, each, given.seed, first=given.first))
            wrong, total = wrong + len(result.wrong), total + result.inputs
            counts = json.dumps(dict(result.counts.most_common()))
            print(
                f"{target.name}: {result.inputs} inputs in {time.monotonic() - since:.0f} s, "
                f"{counts}, at most {result.slowest:.1f} s ({result.busiest:.1f} s of the "
                f"processor) and {result.megabytes} MB",
                flush=True,
            )
    print(f"inputs: {total}, failures: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
