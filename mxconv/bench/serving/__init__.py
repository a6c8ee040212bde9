"""A server under load: how many tokens a second it gives, and how long its clients wait.

Everything goes through HTTP, as a client would see it; the tokens of every request are compared before a figure counts.

load.py       how requests arrive: so many at a time, or at random so many a second
asked.py      a request and what came of it
client.py     one request over HTTP, its chunks as they come
arriving.py   all requests of a load
process.py    `mxconv serve` on a free loopback port
measuring.py  every load, with and without drafts in turns
result.py     what the requests of a load come to
serve_plot.py as a picture
"""
