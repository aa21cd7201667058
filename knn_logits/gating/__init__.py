"""How much to trust the neighbors' vote at each token."""
