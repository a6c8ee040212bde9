"""Products and exact weights on an NVIDIA GPU, in Triton, straight from the arrays of a package.

weight.py, bsfp_weight.py   a matrix on a device, and what it does
arrays/                     what it consists of there
products/                   up to 16 tokens times it
panels.py                   more of them: rows rebuilt into scratch, and torch multiplies
rebuild.py, dequantize.py   its rows as numbers
steps/                      128 columns from stored bytes to numbers, in registers
launch.py                   how a matrix is cut into programs

Needs `pip install mxconv[gpu]` and a torch with CUDA. With TRITON_INTERPRET=1 set before Triton is imported, the same
kernels run on the CPU, slowly: that is how they are tested. What is exact and what is not: docs/gpu.md.
"""
