"""A search over the shards of an index on a Ray cluster against a search in this process.

The cluster's nodes are processes of this machine (`ray.cluster_utils.Cluster`), so its network is
the loopback, and the shards share this machine's processors. Rounds of both searches alternate, and
so do calls of the shards that search nothing. The distances must be equal to the last bit, and so
must the ids wherever entries are not equally near.

    python benchmarks/sharded_search.py STORE --shards 4
"""

import argparse

import numpy as np
import ray
import torch
from common import alternate, record, summary
from ray.cluster_utils import Cluster

import knn_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    args = parser.parse_args()
    torch.set_num_threads(1)
    store = knn_logits.Datastore(args.store)
    node = {"num_cpus": args.shards, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(args.nodes - 1):
        cluster.add_node(**node)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        config = knn_logits.KNNConfig(k=args.k)
        whole = knn_logits.Retriever(store, config).index
        sharded = knn_logits.RayIndexes("auto", shards=args.shards).open(store, config)
        rows = [compared(store, whole, sharded, size, args) for size in args.batches]
    finally:
        ray.shutdown()
        cluster.shutdown()
    record("sharded_search", vars(args), {"entries": len(store), "rows": rows})


def compared(store, whole, sharded, size, args):
    chance = np.random.default_rng(size)
    ids = chance.integers(0, len(store), size)
    queries = torch.from_numpy(store.keys(ids)).float()
    queries += 0.05 * queries.std() * torch.randn(queries.shape, generator=torch.manual_seed(size))
    equal, tied = same(whole.search(queries, args.k), sharded.search(queries, args.k))
    local, spread = alternate(
        lambda: whole.search(queries, args.k), lambda: sharded.search(queries, args.k), args.rounds
    )
    actors = list(sharded.actors)
    calls, _ = alternate(
        lambda: ray.get([one.ready.remote(((), None)) for one in actors]),
        lambda: whole.search(queries, args.k),
        args.rounds,
    )
    one, other = milliseconds(local), milliseconds(spread)
    return {
        "batch": size,
        "identical": equal,
        "rows_tied_at_the_end": tied,
        "milliseconds_local": one,
        "milliseconds_sharded": other,
        "milliseconds_empty_calls": milliseconds(calls),
        "overhead_milliseconds": other["median"] - one["median"],
        "ratio": other["median"] / one["median"],
    }


def same(expected, found):
    """Whether distances and ids are equal, apart from ids at an equal last distance."""
    order = expected[0].argsort(dim=-1, stable=True)
    distances, ids = expected[0].gather(-1, order), expected[1].gather(-1, order)
    if not torch.equal(distances, found[0]):
        return False, None
    tied = 0
    for row in range(len(ids)):
        inside = distances[row] < distances[row, -1]
        if set(ids[row, inside].tolist()) != set(found[1][row, inside].tolist()):
            return False, None
        tied += set(ids[row].tolist()) != set(found[1][row].tolist())
    return True, tied


def milliseconds(seconds):
    found = summary(seconds)
    return {name: 1e3 * found[name] for name in ("median", "fastest")} | {"rounds": found["rounds"]}


if __name__ == "__main__":
    main()
