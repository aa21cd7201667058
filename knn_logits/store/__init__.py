"""The folder of a datastore: its layout, its manifest, reading it and writing it."""
