"""mxconv: any 16-bit LLM checkpoint as its own draft, with proof that nothing was lost."""

__version__ = "0.1.0"
