"""The engine for GGUF files: llama.cpp, behind the calls of a transformers model."""
