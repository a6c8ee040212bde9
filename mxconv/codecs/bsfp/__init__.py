"""BSFP, bit-sharing floating point: the exact 16-bit weight and its 4-bit draft in one set of bytes.

    table.py      the segment table: eight starts, residual width, draft levels
    planes.py     patterns <-> nibbles, residuals and escapes (lossless)
    draft.py      group scales, and the draft's values
    histogram.py  what the fit sees of a tensor
    fit.py        the fitted table
    speq.py       the paper's table, bit layout, decoder logic and outlier policy

Normative text: formats/bsfp.md.
"""
