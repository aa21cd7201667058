"""Gets several tokens from one forward pass: drafts, and the loop that verifies them."""
