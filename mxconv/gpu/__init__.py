"""Packages on an NVIDIA GPU: is there one, has it room, and the way of a package's bytes to it. Needs mxconv[gpu]."""
