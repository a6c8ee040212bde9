"""Published numbers beside ours: every number of the five texts that mxconv's models can be asked for.

row.py             a number, and a table of them
architectures.py   the models that they are about
model_cards.py     parameters
ml_specqd.py       ML-SpecQD, Tables I-III, Figs. 2, 3, 7 and 8
speq.py            SPEQ, Tables II-IV and Fig. 2
spire.py           SPIRe, Figs. 4 and 6, appendix and cost analysis
mlp_speculator.py  the MLP speculators, Tables 1 and 2

`python -m mxconv.cost.published` prints the tables of docs/published.md.
"""
