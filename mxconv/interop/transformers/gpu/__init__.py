"""A torch model whose matrices are on the Triton kernels, and its 4-bit self-draft there.

load_package    a package's matrices in the place of a model's layers
layer_weights   which weight belongs to which linear layer
expert_modules  which stacks belong to which module of experts
linear          what stands for a linear layer
experts         what stands for a module of experts
self_draft      the same model, one level down, as a draft on its own KV cache
chosen_draft    which draft of a package that is
"""
