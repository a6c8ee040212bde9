"""Everything for an NVIDIA GPU: kernels in Gluon, packages on their way to it, layers of torch models on it.

device          is there a GPU, and has it room
load_package    a package in place of a torch model's layers
gpu_linear      linear layers, gpu_experts modules of experts
gpu_package     a package's matrices on a device, their bytes hashed on the way
weight          what multiplies: a kernel up to 16 tokens, torch beyond; one matrix or a stack of experts
fragments       arrays of exact weights, drafts and MXFP4 in the order of tensor cores
fragment_product   kernels that multiply them, fragment_weights how these decode
fragment_reference the same by torch's own operations, where there are no kernels that work
self_check      proves the kernels on a device before they are used
launch          which tokens are multiplied by which expert

Needs `pip install '.[gpu]'` and a torch with CUDA; only `device` and `load_package` can be imported without Triton.
On a CPU everything but the kernels runs as it does on a GPU, and tests run these from their PTX. What is exact and what
is not: docs/hardware.md.
"""
