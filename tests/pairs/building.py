"""Settings, documents and functions that the tests of pairs share."""

from conftest import PAIRS, pair_documents
from handmade import shards_of
from pair_mixtures import LMBDA, TEMPERATURE, K

import knn_logits

SETTINGS = {"k": K, "lmbda": LMBDA, "temperature": TEMPERATURE}
SMALL = {"batch_tokens": 48}
MANY = [
    knn_logits.Document(f"{target} Nummer {number}.", f"d{number}", source=f"{source} No. {number}")
    for number in range(6)
    for source, target in PAIRS
]


def builder(model, tokenizer, parent):
    """Returns a function that builds datastores of pairs in a folder."""

    def built(name="s", documents=None, **options):
        pairs = pair_documents() if documents is None else documents
        with shards_of(4096):
            return knn_logits.build_datastore(
                model, tokenizer, pairs, parent / name, **SETTINGS | options
            )

    return built
