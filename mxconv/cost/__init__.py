"""Models of speed, bytes and energy, whose answers `mxconv cost` prints.

counts.py              parameters, bytes and multiply-adds of a pass
hardware.py            descriptions of hardware; hardware/ has some
levels.py              levels of a hierarchy and seconds of their passes; accelerator.py on SPEQ's
package_levels.py      levels of a package, drafts/pass_cost.py their bytes
speedup.py             tokens a second of a hierarchy; throughput.py of batches, by SPIRe's equation
surfaces.py            both over ranges
trace.py               what a run did
answers.py             the answers of all models to one question, as plain data; traces compared with them
"""
