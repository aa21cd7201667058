"""Learning rows that take the place of a datastore."""
