"""Passes of a torch model as CUDA graphs: its keys and values stay where they are, and Python launches nothing.

A model of transformers launches some hundred kernels a pass, one by one from Python, which takes longer on a fast GPU
than reading its weights. So passes of a few tokens are recorded, each width once, and replayed:

    slab            where keys and values of a text lie
    slab_cache      what a model takes for its KV cache while it is recorded
    recorded_pass   one pass, of one width, over one span of positions
    passes          all of them, kept from text to text
    replayed_target the target of a text, whose short passes are replays
    graphed         `generate` without drafts, likewise
"""
