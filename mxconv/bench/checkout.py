"""Which sources mxconv runs from."""

import subprocess
from pathlib import Path

import mxconv


def checkout_commit() -> str | None:
    """The commit of the checkout that mxconv runs from, "+" behind it where files differ; None elsewhere."""
    root = Path(mxconv.__file__).resolve().parents[1]
    if not (root / ".git").exists():  # an installed package may lie inside a checkout of something else
        return None
    commit = _git(root, "rev-parse", "HEAD")
    return f"{commit}+" if commit and _git(root, "status", "--porcelain", "--untracked-files=no") else commit


def _git(root: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
