"""Benchmarks: every figure is checked for exactness first, and stands beside what the machine can do at that moment.

kernels.py     one weight matrix times a few tokens, against read bandwidth and peak arithmetic
decoding.py    whole decodes of a package, strategy by strategy
batches.py     several sequences side by side, strategy by strategy
strategies.py  greedy, each draft alone, all of them, and what chooses for itself
decode_result.py  what the decodes of a strategy come to
decode_plot.py acceptance by prompt and by position, as pictures
gpu/           kernels and decoding on an NVIDIA GPU
serving/       a server under load, through HTTP
forwards.py    one forward pass of each level
conversion.py  a conversion against a copy of the same bytes
encoders.py    the encoders alone
kernel_result.py  what the samples of a kernel come to
operands.py    matrices to multiply, the bytes that they are, and the weights that they mean
slabs.py       some encoded rows, and large matrices of them
exactness.py   whether a kernel computes what its bytes mean
traffic.py     bytes of weights that a forward pass reads
rates.py       read bandwidth and multiply-adds, as the same threads reach them
samples.py     medians and spreads
prompts.py     texts to decode
engine.py      which native implementations are measured
machine.py     which machine measured
checkout.py    from which sources
plot.py        bandwidth against tokens, and the roofline
random_checkpoint.py  weights to convert where none are given
"""
