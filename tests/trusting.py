"""Datastores whose memory is trusted from a rarity on."""

import shutil

from knn_logits import Datastore
from knn_logits.store.records import TrustRecord, WritingRecord


def with_trust(store, limit, offset=-3.25, slope=1.8, lmbda=0.7, folder=None):
    """The same datastore with trust, in memory or as a copy in another folder."""
    trust = TrustRecord(limit=limit, offset=offset, slope=slope)
    record = WritingRecord(k=8, lmbda=lmbda, temperature=2.0, retomaton=True, trust=trust)
    manifest = store.manifest.model_copy(update={"writing": record})
    if folder is not None:
        manifest.write(shutil.copytree(store.folder, folder))
        return Datastore(folder)
    other = Datastore(store.folder)
    other.manifest = manifest
    return other
