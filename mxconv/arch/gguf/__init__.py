"""What stands in a GGUF file for a description: its tensors and keys, whether it is written or read."""
