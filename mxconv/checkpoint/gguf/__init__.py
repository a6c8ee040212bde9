"""GGUF, the format of llama.cpp: what its names, rows and files mean. The writer is `mxconv.interop.gguf_export`."""
