"""The URL of a folder on an object store, and which package speaks its protocol."""

import re

from mxconv.errors import MxconvError

URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.\-]+)://(?P<path>.*)", re.ASCII | re.DOTALL)
REQUIRED = {  # what has to be installed, by protocol
    "s3": "pip install 'mxconv[s3]'",
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
    "az": "pip install adlfs",
    "abfs": "pip install adlfs",
    "abfss": "pip install adlfs",
    "hf": "",  # the Hub's client brings it
    "memory": "",  # fsspec's own, of one process
}


def is_store_url(text: str) -> bool:
    """Whether the text has the form `protocol://path`."""
    return URL.fullmatch(text) is not None


def parse_store_url(text: str) -> tuple[str, str]:
    """Protocol, and URL without slashes at its end.

    Raises:
        MxconvError: a protocol that is not read, or no folder behind it.
    """
    found = URL.fullmatch(text)
    protocol = found["protocol"] if found else ""
    if protocol == "file":
        raise MxconvError(f"{text}: a local folder; its path is required. Leave file:// out.")
    if protocol not in REQUIRED:
        raise MxconvError(
            f"{text}: protocol {protocol!r}; one of {', '.join(REQUIRED)} is required. Check the address."
        )
    assert found is not None
    path = found["path"].strip("/")
    if not path or ".." in path.split("/") or any(character in path for character in "\\\n\r\0"):
        raise MxconvError(f"{text}: names no folder; {protocol}://BUCKET/FOLDER is required. Check the address.")
    return protocol, f"{protocol}://{path}"
