"""Gates, which decide at each token how much the neighbors' vote counts."""
