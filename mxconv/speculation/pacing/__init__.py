"""How many tokens to ask of which draft: what has paid so far, and what that says of the next round."""
