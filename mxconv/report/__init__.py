"""Inspections, runs and cost reports: in the terminal, as pictures and as HTML pages.

sources.py             opens a checkpoint or a package as tensors (open_weights.py)
inspection.py          figures of every tensor, of layers or kinds, and of all (weight_statistics.py, exponents.py)
inspection_page.py     an inspection in the terminal, as tables, charts and page; cost_page.py a cost report
traced_run.py          a trace of `generate`: prompts, rounds, trees; its tables and page
tables.py, charts.py   what tells figures, and shows them in HTML
"""
