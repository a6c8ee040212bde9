"""The rooms off `convert.py`, in the order in which a checkpoint passes through them.

options.py      options of a conversion
preparation.py  everything up to the first written byte: the next three, and how large slices may be
plan.py         which tensor becomes what, and why; its slices of rows as 16-bit patterns
drafts.py       further models that become levels
survey.py       one reading pass: non-finite weights, histograms, segment tables
encode.py       rows in, planes out
describe.py     the manifest

Where the package grows, and how a killed conversion resumes: `mxconv.package.staging` and its neighbors.
"""
