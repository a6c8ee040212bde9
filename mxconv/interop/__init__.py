"""What others read and write: the Hub, GGUF, compressed-tensors, plain safetensors, transformers."""
