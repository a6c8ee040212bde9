"""Numbers of four papers and of model cards beside those that mxconv's cost models derive.

`python -m mxconv.cost.published` prints the tables of docs/published.md.
"""
