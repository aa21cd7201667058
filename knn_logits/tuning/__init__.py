"""λ, temperature and k, chosen on one part of a text and reported on another."""
