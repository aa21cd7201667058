"""A datastore whose settings are tuned."""

from knn_logits.measure import tuner
from knn_logits.store.records import SettingsRecord


def write_settings(store, k, lmbda, temperature, gate=None, *, suffix_weight=1.0):
    """Stores settings as `tune` does."""
    record = SettingsRecord(
        k=k,
        lmbda=lmbda,
        temperature=temperature,
        suffix_weight=suffix_weight,
        calibrated=True,
        tuned=True,
    )
    tuner.write_settings(store, record, gate)
