"""Datastores of earlier kNN-LM systems, made datastores of this package."""
