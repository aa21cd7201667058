"""`generate()` with a memory: the logits processor, and drafts."""
