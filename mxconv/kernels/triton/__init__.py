"""Products and exact weights on an NVIDIA GPU, in Triton, straight from the arrays of a package.

Needs `pip install mxconv[gpu]` and a torch with CUDA. With TRITON_INTERPRET=1 set before Triton is imported, the same
kernels run on the CPU, slowly: that is how they are tested. What is exact and what is not: docs/gpu.md.
"""
