"""What datastores of published size would need with 64-byte codes: the figures of "Many machines".

Only sizes are kept: they follow from the rules of `knn_logits/building/costs.py` on any machine.

    python benchmarks/plan.py
"""

import torch
from common import record

from knn_logits import IndexConfig, forecast

# Tokens, length of a key, layers, index.
SIZES = {
    "WikiText-103": (103_227_021, 1024, 16, "IVF16384,PQ64"),
    "Wiki-3B": (2_870_000_000, 1024, 16, "IVF65536,PQ64"),
    "a trillion tokens": (10**12, 4096, 32, "IVF65536,PQ64"),
}
KEPT = ("bytes", "memory", "building_memory", "gpu_memory", "machine")


def main():
    torch.set_num_threads(1)
    found = {}
    for name, (tokens, dim, layers, index) in SIZES.items():
        config = IndexConfig(index, nprobe=8)
        said = forecast(tokens, dim=dim, layers=layers, index=config, threads=1, compare=False)
        found[name] = {"index": said.needs[0].index} | {
            what: getattr(said.needs[0], what) for what in KEPT
        }
    settings = {name: list(size) for name, size in SIZES.items()}
    record("plan", settings, found)


if __name__ == "__main__":
    main()
