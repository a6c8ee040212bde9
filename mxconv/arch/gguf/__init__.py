"""The tensors and keys of a GGUF file that a description stands for, written or read."""
