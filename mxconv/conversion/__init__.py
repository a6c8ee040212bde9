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
target.py       where the package goes
staging.py      how it grows there: what folders and stores have in common
encode.py       rows in, planes out
encode_task.py  one tensor of it as work for any process
finished.py     tensors that are both encoded and hashed
arrivals.py     how much of a shard is there, as its arrays come in any order
describe.py     the manifest

Into a folder:

folder_target.py  what may stand there
folder_staging.py the folder beside it
journal.py        whose work lies there, and which tensors are finished
staged_shards.py  its shards, as every process opens them
shard_hash.py     the package's files, hashed while they are written
replaced.py       how an old package makes room for the new one

Into an object store, where nothing can be written to twice:

store_target.py   what may stand there, and what an interrupted conversion left
store_staging.py  the package that grows there
marker.py         by which a worker knows that it lasts
spool.py          a finished tensor, as an object of its own
shard_upload.py   the shards, read from these and sent in parts
file_upload.py    files that go along as they are
object_note.py    what is noted of a large object, so that it is sent once
"""
