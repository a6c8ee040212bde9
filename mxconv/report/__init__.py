"""What `mxconv inspect` shows, in the order in which it is made.

sources.py             opening: checkpoint_weights.py, package_weights.py, both as weights.py
inspection.py          the story: tensors, then layers or kinds, then the total
statistics.py          one tensor's figures: exponents.py (histogram, window) and drafts.py (errors, bytes)
bars.py, text.py       the same bars and words for all that follows
terminal.py            for a terminal: terminal_bars.py, terminal_table.py
plot.py                PNG or SVG
page.py                one HTML page, from page.html.j2
output_file.py         written beside its place and renamed
"""
