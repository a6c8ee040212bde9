"""The parts of a GGUF file: vocabulary, metadata, tensors, and the file itself."""
