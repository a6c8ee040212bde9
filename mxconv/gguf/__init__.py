"""GGUF, the format of llama.cpp: what files, keys, names and vocabularies mean, read and written."""
