"""What `mxconv inspect` and `mxconv cost` show, in the order in which it is made.

sources.py             opening: checkpoint_weights.py, package_weights.py, both as weights.py
inspection.py          the story: tensors, then layers or kinds, then the total
statistics.py          one tensor's figures: exponents.py (histogram, window) and drafts.py (errors, bytes)
bars.py, text.py       the same bars and words for all that follows
terminal.py            for a terminal: terminal_bars.py, terminal_table.py
plot.py                PNG or SVG
page.py                one HTML page: template.py fills in templates/, histogram.py places bars
cost_tables.py         a cost report as text: cost_terminal.py prints it
cost_plot.py           its pictures
cost_page.py           its page, with sliders: cost_page_data.py is what the page's own scripts compute from
run.py                 a trace of `generate`: prompts, rounds, trees; run_terminal.py prints it
run_page.py            its page: tree_layout.py places nodes, visible.py shows white space
output_file.py         written beside its place and renamed
"""
