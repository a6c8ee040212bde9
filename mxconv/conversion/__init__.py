"""The rooms off `convert.py`, in the order in which a checkpoint passes through them.

options.py      what was asked for
preparation.py  the next four, up to the first written byte
plan.py         which tensor becomes what, and why
drafts.py       further models that become levels
survey.py       one reading pass: non-finite weights, histograms, segment tables
executor.py     what threads and clusters both offer: tasks, and streams beside them
work.py         threads, for tensors and for the streams beside them
source_hash.py  the source's files and tensors, hashed in one pass
layout.py       every array's place in its file
staging.py      the folder beside the target
journal.py      whose work lies there, and which tensors are finished
staged_shards.py  its shards, as every process opens them
encode.py       rows in, planes out
encode_task.py  one tensor of it as work for any process
finished.py     tensors that are both encoded and hashed
shard_hash.py   the package's files, hashed while they are written
describe.py     the manifest
replaced.py     how an old package makes room for the new one
"""
