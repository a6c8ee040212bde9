"""Prints the tables of docs/published.md."""

from mxconv.cost.published.sections import markdown

if __name__ == "__main__":
    print(markdown(), end="")
