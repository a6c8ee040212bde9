"""Inspections, runs and cost reports: in the terminal, as pictures and as HTML pages.

sources.py             opens a checkpoint or a package as tensors (open_weights.py)
inspection.py          figures of every tensor, of layers or kinds, and of all (weight_statistics.py, exponents.py)
inspection_*.py        an inspection as tables, and as charts and page
cost_*.py              a cost report as tables, and as charts and page
traced_run.py          a trace of `generate`: prompts, rounds, trees; its tables and page
tables.py, charts.py   what tells figures, page.py what shows both in HTML
"""
