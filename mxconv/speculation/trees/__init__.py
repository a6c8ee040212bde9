"""Trees of guesses: how they grow, and what became of a round's."""
