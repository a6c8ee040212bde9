"""Models of speed, bytes and energy, whose answers `mxconv cost` prints.

counts.py              parameters, bytes and multiply-adds of a pass
hardware.py            descriptions of hardware; hardware/ has some
roofline.py            seconds of a pass on it; accelerator.py on SPEQ's
levels.py              levels of a hierarchy; package_levels.py those of a package, engine/stored_bytes.py their bytes
speedup.py             tokens a second of a hierarchy; throughput.py of batches, by SPIRe's equation
surfaces.py            both over ranges
trace.py               what a run did; prediction.py compares it with the models
answers.py             the answers of all models to one question, as plain data
"""
