"""Published numbers beside ours: numbers of four papers that mxconv's cost models derive, and those they need.

row.py             a number, and a table of them
architectures.py   the models that they are about
model_cards.py     parameters
ml_specqd.py       ML-SpecQD, Tables I-III, Figs. 2, 3, 7 and 8
speq.py            SPEQ, Tables II-IV, Fig. 2(a), sections V-C and V-D
spire.py           SPIRe, Figs. 3, 4 and 6, and cost analysis
mlp_speculator.py  the MLP speculators, Tables 1 and 2

`python -m mxconv.cost.published` prints the tables of docs/published.md.
"""
