"""Everything for an NVIDIA GPU: kernels in Triton, packages on their way to it, layers of torch models on it.

device          is there a GPU, and has it room
load_package    a package in place of a torch model's layers
gpu_linear      linear layers, gpu_experts modules of experts
gpu_package     a package's matrices on a device, their bytes hashed on the way
weight          what multiplies: a kernel up to 16 tokens, torch beyond; one matrix or a stack of experts
four_bit_product  4-bit arrays and products
fragments       arrays of exact weights, drafts and MXFP4 in the order of tensor cores; fragment_weights decodes them,
                fragment_product multiplies, self_check proves it on a device before they are used
bsfp_arrays     arrays of the exact weights, patches their escapes, bsfp_product their kernels
launch          how a matrix is cut into programs
instructions    from stored bytes to numbers in registers, by instructions that Triton has no name for

Needs `pip install '.[gpu]'` and a torch with CUDA; only `device` and `load_package` can be imported without Triton.
With TRITON_INTERPRET=1 set before Triton is imported, the same kernels run on the CPU, slowly, which is how they are
tested. What is exact and what is not: docs/hardware.md.
"""
