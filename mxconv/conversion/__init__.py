"""The rooms off `convert.py`, in the order in which a checkpoint passes through them.

options.py    what was asked for
plan.py       which tensor becomes what, and why
survey.py     one reading pass: non-finite weights, histograms, segment tables
layout.py     every array's place in its file, before anything is written
staging.py    the folder beside the target
journal.py    whose work lies there, and which tensors are finished
replaced.py   how an old package makes room for the new one
encode.py     rows in, planes out
drafts.py     further models that become levels
"""
