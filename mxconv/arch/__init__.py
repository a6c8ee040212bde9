"""What a model is made of, as data, and its families: from config.json to a description that decoders read."""
