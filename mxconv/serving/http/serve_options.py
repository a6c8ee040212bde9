"""Options of a server: where it listens, whom it lets in, and its limits."""

from dataclasses import dataclass

from mxconv.errors import ModelError

LEAST_KEY = 8  # characters; a shorter key can be guessed


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server.

    Args:
        host: the address to listen on.
        port: 0 for any free one.
        api_key: that clients must have; None lets everyone in.
        max_sequences: decoded at a time, of each model.
        kv_bytes: for keys and values, of all models together; None is no limit.
        max_queue: sequences that may wait while others are decoded, of all models together.
        max_prompt_tokens: of a prompt; None: as many as the target has positions.
        max_new_tokens: of a choice; None: likewise.
        max_body_bytes: of a request.
        request_seconds: from the first byte of a body to the last one of its answer.
        slow_seconds: for a request's head, and for its body.
        drain_seconds: in which running requests may finish once the server is told to stop.
        allowed_origins: of other sites whose scripts may ask and read; "*" for all.
        special_tokens_in_content: whether names of special tokens in messages are those tokens, not text.

    Raises:
        ModelError: the key is too short.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_sequences: int = 16
    kv_bytes: int | None = None
    max_queue: int = 64
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    max_body_bytes: int = 4_000_000
    request_seconds: float = 600.0
    slow_seconds: float = 10.0
    drain_seconds: float = 5.0
    allowed_origins: tuple[str, ...] = ()
    special_tokens_in_content: bool = False

    def __post_init__(self) -> None:
        if self.api_key is not None and len(self.api_key) < LEAST_KEY:
            raise ModelError(
                f"API key: {len(self.api_key)} characters; at least {LEAST_KEY} are required. Choose a longer one."
            )
