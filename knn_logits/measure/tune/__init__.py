"""Chooses λ, temperature and k on one part of a text, and reports them on another."""
