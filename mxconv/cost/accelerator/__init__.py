"""SPEQ's accelerator (arXiv 2510.18525, section IV): one array that reads a weight whole, or only its 4-bit draft.

machine.py     its sizes, from a hardware description
passes.py      cycles, bytes and energy of one forward pass, whole or draft
comparison.py  plain decoding, speculation, and two 8-bit machines
element.py     one processing element, bit for bit, in both modes
fp32.py        its accumulator's sum
"""
