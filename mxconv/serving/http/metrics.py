"""The counters of /metrics, for Prometheus."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mxconv.serving.http.call import Admission, Call

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counters of one server."""

    def __init__(self, admission: Admission) -> None:
        self._registry = registry = CollectorRegistry()
        ends = "Choices by how they ended; dropped: nobody wanted the rest."
        guessed = "Tokens by the level that guessed them; target: its own."
        self._responses = Counter("mxconv_http_responses", "Responses.", ("path", "status"), registry=registry)
        self._prompt_tokens = Counter("mxconv_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._new_tokens = Counter("mxconv_new_tokens", "Tokens that were decoded.", registry=registry)
        self._guessed = Counter("mxconv_tokens_guessed", guessed, ("level",), registry=registry)
        self._endings = Counter("mxconv_choices", ends, ("ending",), registry=registry)
        self._seconds = _histogram("mxconv_request_seconds", "From a request to the end of its answer.", registry)
        self._first = _histogram("mxconv_first_token_seconds", "From a request to its first token.", registry)
        sequences = Gauge("mxconv_sequences", "Sequences that are decoded or wait to be.", registry=registry)
        sequences.set_function(lambda: admission.num_open)

    def respond(self, path: str, status: int) -> None:
        """Count a response; unknown paths have one name, or anyone could make up any number of them."""
        self._responses.labels(path, str(status)).inc()

    def count(self, call: Call) -> None:
        """Count a call that is over."""
        self._prompt_tokens.inc(call.num_prompt_tokens)
        self._new_tokens.inc(call.num_new_tokens)
        for choice in call.choices:
            ending = "error" if choice.error else choice.finish_reason or "dropped"
            self._endings.labels(ending).inc()
            for token in choice.tokens:
                self._guessed.labels(token.guessed_by or "target").inc()
        self._seconds.observe(time.perf_counter() - call.began)
        if call.first_token is not None:
            self._first.observe(call.first_token)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)


def _histogram(name: str, about: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, about, buckets=SECONDS, registry=registry)
