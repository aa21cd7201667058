"""Shares datastores: publishes and fetches them, and writes their cards."""
