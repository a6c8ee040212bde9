"""One file a family: config.json to a description. `registry.py` lists them."""
