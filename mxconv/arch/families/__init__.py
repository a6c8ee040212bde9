"""One file a family: config.json to a description. `table.py` lists them."""
