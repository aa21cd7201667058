"""What datastores of published size would need with 64-byte codes: the figures of "Many machines".

The times are of one thread of this machine. The models are known by their width and layers alone.

    python benchmarks/plan.py
"""

import dataclasses

import torch
from common import record

from knn_logits import IndexConfig, forecast

# Tokens, length of a key, layers, index.
SIZES = {
    "WikiText-103": (103_227_021, 1024, 16, "IVF16384,PQ64"),
    "Wiki-3B": (2_870_000_000, 1024, 16, "IVF65536,PQ64"),
    "a trillion tokens": (10**12, 4096, 32, "IVF65536,PQ64"),
}


def main():
    torch.set_num_threads(1)
    found = {}
    for name, (tokens, dim, layers, index) in SIZES.items():
        config = IndexConfig(index, nprobe=8)
        said = forecast(tokens, dim=dim, layers=layers, index=config, threads=1, compare=False)
        found[name] = dataclasses.asdict(said.needs[0])
    settings = {name: list(size) for name, size in SIZES.items()}
    record("plan", settings, found)


if __name__ == "__main__":
    main()
