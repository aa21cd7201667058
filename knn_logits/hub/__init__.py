"""Sharing datastores: pushing them to the Hub, their cards, and the catalogue of published ones."""
