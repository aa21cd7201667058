"""From a corpus to a datastore: documents, tokens, keys, index."""
