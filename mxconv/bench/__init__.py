"""Benchmarks: every figure is checked for exactness first, and is given with what the machine can do at that moment.

rates.py             read bandwidth and multiply-adds a second, as the same threads reach them; medians
machine.py           which machine measured, from which sources, with which native kernels
operands.py          matrices to multiply, the weights that their bytes mean, and checks of products against these
kernel_speed.py      one weight matrix times a few tokens, against read bandwidth and peak arithmetic
capability.py        the rates of a machine as a hardware description for `mxconv cost`
decode_speed.py      whole decodes of a package, strategy by strategy
batch_speed.py       several sequences side by side, strategy by strategy
forward_speed.py     one forward pass of each level
conversion_speed.py  a conversion against a copy of the same bytes, and the encoders alone
gpu_kernel_speed.py  products on a GPU, against torch's BF16 product
plots.py             the figures as pictures
"""
