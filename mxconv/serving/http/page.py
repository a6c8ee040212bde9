"""The page at /: one file without anything from elsewhere, under a policy that forbids what it does not need."""

import base64
import hashlib
import json
from importlib.resources import files

from fastapi.responses import HTMLResponse, Response

from mxconv.serving.http.served import ServedModel

SCRIPTS = ("events.js", "statistics.js", "sampling.js", "page.js")


class Page:
    """The page, put together once.

    Args:
        served: the model that it talks to.
    """

    def __init__(self, served: ServedModel) -> None:
        folder = files("mxconv.serving.http").joinpath("page")
        html, style, *scripts = (
            folder.joinpath(name).read_text("utf-8") for name in ("page.html", "page.css", *SCRIPTS)
        )
        script = "".join(scripts)
        about = {"model": served.name, **served.about}
        known = json.dumps(about).replace("<", "\\u003c")  # nothing in it ends the script element
        self._html = html.replace("/*style*/", style).replace("/*script*/", script).replace("/*about*/", known)
        self._policy = "; ".join(
            (
                "default-src 'none'",
                f"script-src {_hash(script)}",
                f"style-src {_hash(style)}",
                "connect-src 'self'",
                "img-src data:",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
            )
        )

    def response(self) -> Response:
        return HTMLResponse(self._html, headers={"Content-Security-Policy": self._policy, "Cache-Control": "no-cache"})


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
