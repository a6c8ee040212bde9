"""How much one client may ask for, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of a server.

    Args:
        max_queue: sequences that may wait while others are decoded.
        max_prompt_tokens: of a prompt; None: as many as the target has positions.
        max_new_tokens: of a choice; None: likewise.
        max_body_bytes: of a request.
        request_seconds: from the first byte of a body to the last one of its answer.
        slow_seconds: for a request's head, and for its body.
        drain_seconds: that running requests have to finish once the server is told to stop.
    """

    max_queue: int = 64
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    max_body_bytes: int = 4_000_000
    request_seconds: float = 600.0
    slow_seconds: float = 10.0
    drain_seconds: float = 5.0
