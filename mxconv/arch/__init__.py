"""Descriptions of models, as data, and their families: from config.json to a description that decoders read."""
