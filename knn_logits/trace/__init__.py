"""Which entries caused which token: recorded while generating, put together, shown."""
