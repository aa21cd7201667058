"""Repeats the studies of the kNN-LM papers on a given model and text."""
