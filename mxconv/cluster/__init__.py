"""Many machines: Ray does the tasks that threads do on one. docs/scale.md says when that pays.

address.py   what `--workers` asks for
session.py   the connection to a cluster, and what a missing one is told as
executor.py  who does what next: an `Executor` of `mxconv.conversion`
jobs.py      what workers are sent: batches of pieces, and streams
crew.py      the workers, as nodes come and go
remote.py    what runs in a worker
"""
