"""Checkpoints without loss in two thirds of their bytes: formats/compact.md, coded by zstd."""
