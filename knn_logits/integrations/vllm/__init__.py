"""kNN-LM in vLLM: a plugin that mixes a memory's vote into the scores of each sampled token."""
