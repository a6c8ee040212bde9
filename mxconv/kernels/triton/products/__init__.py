"""Kernels that multiply up to 16 tokens, a token as if alone."""
