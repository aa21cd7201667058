"""The mixture of a model's distribution with its neighbors' vote: `Memory`, `Vote`, gates."""
