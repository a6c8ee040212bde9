"""What other programs read and write: GGUF, compressed-tensors, plain safetensors, transformers."""
