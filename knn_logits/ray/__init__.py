"""Work that is spread over the machines of a Ray cluster: keys of a build, shards of an index."""
