"""Choosing by measurement what a package decodes fastest with, on prompts like those it will see.

levels.py     which levels, how many tokens they draft and when they stop
candidate.py  what there is to choose from
race.py       successive halving against the clock
layers.py     which layers of the target to skip
"""
