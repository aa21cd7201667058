"""Which entries caused which token: records a generation, assembles its trace, draws it."""
