"""OpenAI's HTTP interface to the engine: a thread that decodes, and an event loop for requests.

`app.py` lists the endpoints, `replying.py` is the way of one request, `server.py` the process. Needs the extra `serve`.
"""
