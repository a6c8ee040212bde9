"""What `mxconv cost` answers, in the order in which it is made. Pure but for the readers of files.

architecture.py        sizes of a model, from config.json
counts.py              parameters, bytes and multiply-adds of a pass
traffic.py             the bytes that a package's levels really read
hardware.py            descriptions of machines; hardware/ holds some
roofline.py            seconds of a pass on them
accelerator/           seconds and joules of a pass on SPEQ's machine
levels.py              a level: what it reads, how often the one above agrees; package_levels.py those of a package
speedup.py             tokens a second of a hierarchy; early_exit.py with a confidence threshold
throughput.py          the same for batches, by SPIRe's equation
surfaces.py            both over ranges, for pictures and sliders
advice.py              the fastest hierarchy, and whether to speculate at all
trace.py               what a run did; prediction.py sets it beside what the models say
report.py              all answers to one question, as plain data
published.py           papers' numbers beside ours
"""
