"""Text as models read and write it: tokenizers, chat templates, streams, and how the next token is chosen."""
