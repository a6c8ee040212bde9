"""Many machines: Ray does the tasks that threads do on one. docs/scale.md says when that pays.

address.py   what `--workers` asks for
session.py   the connection to a cluster, and what a missing one is told as
executor.py  tasks and streams on it
remote.py    what runs in its workers
"""
