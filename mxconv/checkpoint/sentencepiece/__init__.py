"""tokenizer.model, the file of SentencePiece: read, and turned into what tokenizer.json holds."""
