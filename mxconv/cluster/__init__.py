"""Many machines: Ray does the tasks that threads do on one. docs/scale.md says when that pays.

address.py   what `--workers` asks for
session.py   the connection to a cluster, and what a missing one is told as
executor.py  who does what next: an `Executor` of `mxconv.conversion`
batches.py   what workers are sent: the pieces of a task
sent_stream.py  and a stream, which stays with one worker
crew.py      the workers, as nodes come and go
member.py    one of them, and its calls
pace.py      who of them is late
job.py       what the crew tells of a call
node.py      what a node is called
remote.py    what runs in a worker
"""
