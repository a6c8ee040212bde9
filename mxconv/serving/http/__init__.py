"""The engine behind OpenAI's HTTP interface: a thread that decodes, an event loop that talks.

`app.py` lists the endpoints, `replying.py` is the way of one request, `server.py` the process. Needs the extra `serve`.
"""
