"""Answers questions: the datastore's passages are read, and each word's source is proved."""
