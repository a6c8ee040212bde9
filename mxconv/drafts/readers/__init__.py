"""Networks that read the hidden states of the model above, and how they draft."""
