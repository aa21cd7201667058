"""Reads documents from files, folders and datasets of the Hub."""
