"""Object stores: `s3://`, `gs://`, `az://`, `hf://` and what else fsspec knows. docs/scale.md says how they are used.

address.py     URLs, and which package speaks each protocol
filesystem.py  the client: one policy of timeouts and retries for all
store.py       a folder there: listed, read by ranges, written whole or not at all
ranged_file.py a safetensors file there, and its tensors
snapshot.py    a checkpoint there: its small files are fetched, its weights stay
"""
