"""Times the first opening of a datastore, which reads every byte, and later openings.

python benchmarks/verification.py STORE
"""

import argparse
import os
import tempfile

from common import alternate, record, summary

import knn_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KNN_LOGITS_CACHE"] = cache
        store = knn_logits.Datastore(args.store)
        size = sum(one.bytes for one in store.manifest.files)
        first, later = alternate(
            lambda: knn_logits.Datastore(args.store, full=True),
            lambda: knn_logits.Datastore(args.store),
            args.rounds,
        )
    whole, quick = summary(first), summary(later)
    record(
        "verification",
        vars(args),
        {
            "bytes": size,
            "entries": len(store),
            "first_opening_s": whole,
            "later_opening_s": quick,
            "gigabytes_per_second": size / whole["median"] / 1e9,
            "ratio": quick["median"] / whole["median"],
        },
    )


if __name__ == "__main__":
    main()
