"""A request, and what came of it."""

from dataclasses import dataclass, field

from mxconv.text.messages import Prompt


@dataclass(frozen=True)
class Asked:
    """What a client sends to /v1/completions, or where its prompt is messages to /v1/chat/completions.

    Args:
        prompt: text, or messages.
        max_tokens: at most.
        seed: of its draws.
        temperature: 0 is greedy.
    """

    prompt: Prompt
    max_tokens: int
    seed: int
    temperature: float = 0.0

    @property
    def path(self) -> str:
        """Of the endpoint."""
        return "/v1/completions" if isinstance(self.prompt, str) else "/v1/chat/completions"

    @property
    def body(self) -> dict[str, object]:
        """Streamed, with the ids of tokens."""
        return {
            "prompt" if isinstance(self.prompt, str) else "messages": self.prompt,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
            "stream": True,
            "mxconv": {"trace": True},
        }


@dataclass
class Answered:
    """What came back.

    Args:
        began: when it was sent, by the clock of `time.perf_counter`.
        arrived: when each chunk with tokens came.
        num_tokens: of each of these chunks.
        token_ids: all of them.
        error: why there is no whole answer; None where there is one.
    """

    began: float
    arrived: list[float] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def first_token_seconds(self) -> float:
        """From the request to its first token."""
        return self.arrived[0] - self.began

    @property
    def seconds(self) -> float:
        """From the request to its last token."""
        return self.arrived[-1] - self.began

    @property
    def chunk_gaps(self) -> list[float]:
        """Seconds between chunks: how long a reader sees nothing new."""
        return [after - before for before, after in zip(self.arrived, self.arrived[1:], strict=False)]

    @property
    def token_gaps(self) -> list[float]:
        """Seconds a token behind the first chunk: the tokens of a chunk share the gap before it."""
        shared = zip(self.chunk_gaps, self.num_tokens[1:], strict=True)
        return [gap / number for gap, number in shared for _ in range(number)]
