"""Inspections and cost reports in the terminal, as pictures and as HTML pages.

sources.py             opens a checkpoint (checkpoint_weights.py) or a package as tensors (open_weights.py)
inspection.py          figures of every tensor, of layers or kinds, and of all (weight_statistics.py, exponents.py)
inspection_*.py        an inspection as tables, and as picture and page
cost_*.py              a cost report as tables, and as pictures and page
traced_run.py          a trace of `generate`: prompts, rounds, trees; run_report.py lists its rounds
loss_curves.py         the picture of a training
tables.py, picture.py  what all of them share, html_page.py for pages, output_file.py for files
"""
