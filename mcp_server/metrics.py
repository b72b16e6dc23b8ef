"""What the server counts, in Prometheus' terms. No label takes its value from a request."""

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
_DURATION_BUCKETS_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 120, 300)


class Metrics:
    """`registry` is one of its own unless given, so that several servers fit into one process."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        sessions: Callable[[], int],
        warm_sandboxes: Callable[[], int],
        running_calls: Callable[[], int],
    ) -> None:
        self._registry = registry or CollectorRegistry()
        self._calls = Counter(
            "cli_mcp_calls", "Calls of tools by outcome", ["outcome"], registry=self._registry
        )
        self._call_seconds = Histogram(
            "cli_mcp_call_seconds",
            "Duration of calls of tools, with the wait for the session's turn",
            buckets=_DURATION_BUCKETS_SECONDS,
            registry=self._registry,
        )
        self._refused = Counter(
            "cli_mcp_refused_requests",
            "HTTP requests that were turned away",
            ["reason"],
            registry=self._registry,
        )
        for name, help_text, value in (
            ("cli_mcp_sessions", "Sessions with a sandbox", sessions),
            ("cli_mcp_warm_sandboxes", "Sandboxes that wait for a session", warm_sandboxes),
            ("cli_mcp_running_calls", "Calls that run or wait for their turn", running_calls),
        ):
            Gauge(name, help_text, registry=self._registry).set_function(value)

    def call_ended(self, outcome: str, seconds: float) -> None:
        self._calls.labels(outcome).inc()
        self._call_seconds.observe(seconds)

    def request_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def exposition(self) -> bytes:
        """The text that a scrape gets, of type CONTENT_TYPE."""
        return generate_latest(self._registry)
