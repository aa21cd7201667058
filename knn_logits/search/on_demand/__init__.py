"""Keys on demand: a datastore of text alone, whose keys a model computes where they are needed."""
