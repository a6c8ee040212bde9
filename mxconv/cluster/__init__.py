"""Many machines: Ray runs the tasks that threads run on one. docs/scale.md says when that pays.

connection.py  the value of `--workers`, and the connection to a cluster
executor.py    tasks and streams as Ray tasks: an `Executor` of `mxconv.workers`
"""
