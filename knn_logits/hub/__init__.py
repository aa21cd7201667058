"""Shares datastores: publishes and fetches them, writes their cards, and lists published ones."""
