"""Kernels and decoding on an NVIDIA GPU, beside its read bandwidth and the library's own products. Needs mxconv[gpu].

kernels.py         one weight matrix times a few tokens, against read bandwidth and torch's BF16 product
decoding.py        a model in transformers: in 16 bits, in BSFP, with the 4-bit self-draft
decode_result.py   what its decodes come to
recorded_text.py   one text, its choices and their margins
operands.py        the matrices on a device
exactness.py       whether they multiply as they should
dfloat11.py        the same by the package dfloat11
launches.py        how long launches take, on the device's own clock
read_bandwidth.py  what the device reads at this moment
read_kernel.py     the kernel that reads
memory.py          what a model takes on the device
traffic.py         bytes of weights that a forward pass reads
device.py          where to measure
machine.py         which GPU measured

With TRITON_INTERPRET=1 all of it runs on the CPU, in Triton's interpreter: as a test, since its times mean nothing.
"""
