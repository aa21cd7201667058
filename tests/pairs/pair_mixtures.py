"""Computes the mixture before each token of a target in float64, with all keys and no cache."""

import numpy as np
import torch
from conftest import PAIRS

from knn_logits.engine.forward import key_states_and_logits
from knn_logits.engine.location import find_key

K, LMBDA, TEMPERATURE = 12, 0.45, 4.0
SOURCES = [source for source, _ in PAIRS] + [target for _, target in PAIRS]


def parts(model, store, source, sequence, k=K, temperature=TEMPERATURE):
    """Computes p_LM and p_kNN before each token of a target.

    Returns:
        p_LM and p_kNN, float64 [tokens, vocabulary] each.
    """
    ids = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([sequence[:-1]])}
    states, logits = key_states_and_logits(model, find_key(model), ids)
    queries, logits = states[0].double().numpy(), logits[0].double().numpy()
    shown = np.setdiff1d(np.arange(len(store)), store.removed_entries)
    keys = store.keys(shown).astype(np.float64)
    values = store.values.numpy()[shown]
    by_model, by_neighbors = [], []
    for query, scores in zip(queries, logits, strict=True):
        far = ((keys - query) ** 2).sum(-1)
        nearest = np.argsort(far, kind="stable")[:k]
        weights = np.exp(-(far[nearest] - far[nearest[0]]) / temperature)
        p_knn = np.zeros(len(scores))
        np.add.at(p_knn, values[nearest], weights / weights.sum())
        p_lm = np.exp(scores - scores.max())
        by_model.append(p_lm / p_lm.sum())
        by_neighbors.append(p_knn)
    return np.array(by_model), np.array(by_neighbors)


def mixtures(model, store, source, sequence):
    """Computes the mixture before each token of a target, float64 [tokens, vocabulary]."""
    by_model, by_neighbors = parts(model, store, source, sequence)
    return LMBDA * by_neighbors + (1 - LMBDA) * by_model


def ended(sequence, end=0):
    """Returns a row of an output without its padding."""
    place = sequence.index(end, 1) + 1 if end in sequence[1:] else len(sequence)
    return sequence[:place]
