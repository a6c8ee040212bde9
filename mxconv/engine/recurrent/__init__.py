"""Mixers with a state: convolutions, gated DeltaNet and Mamba-2, and what a cache keeps of them."""
