"""Formats and libraries of others: the Hub, GGUF, compressed-tensors, plain safetensors, transformers."""
