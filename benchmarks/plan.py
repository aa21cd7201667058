"""What datastores of published size would need, by kind of index: the figures of "Many machines".

The times are of this machine. The models are known by their width and their layers alone.

    python benchmarks/plan.py
"""

import dataclasses

import torch
from common import record

from knn_logits import forecast

# Tokens, length of a key, layers.
SIZES = {
    "WikiText-103": (103_227_021, 1024, 16),
    "Wiki-3B": (2_870_000_000, 1024, 16),
    "a trillion tokens": (10**12, 4096, 32),
}


def main():
    torch.set_num_threads(1)
    found = {}
    for name, (tokens, dim, layers) in SIZES.items():
        said = forecast(tokens, dim=dim, layers=layers, threads=1)
        found[name] = [dataclasses.asdict(one) for one in said.needs]
    settings = {name: list(size) for name, size in SIZES.items()}
    record("plan", settings, found)


if __name__ == "__main__":
    main()
