"""What the server of a cluster counts besides calls. No label takes its value from a request or an agent."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from mcp_server.tls import ServerCertificate


class ClusterMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._kubernetes_requests = Counter(
            "cli_mcp_kubernetes_requests",
            "Requests to the Kubernetes API about pods, by method",
            ["method"],
            registry=registry,
        )
        self._caller_reviews = Counter(
            "cli_mcp_caller_reviews",
            "Checks of a caller: cached, allowed, refused, unavailable (no API server) or limited (guesses)",
            ["verdict"],
            registry=registry,
        )
        self._agent_errors = Counter(
            "cli_mcp_agent_errors",
            "Calls to sandbox agents that went wrong: unreachable, lost (outcome unknown) or misbehaved",
            ["kind"],
            registry=registry,
        )

    def kubernetes_request(self, method: str) -> None:
        self._kubernetes_requests.labels(method).inc()

    def caller_reviewed(self, verdict: str) -> None:
        self._caller_reviews.labels(verdict).inc()

    def agent_failed(self, kind: str) -> None:
        self._agent_errors.labels(kind).inc()

    def show_certificate(self, certificate: ServerCertificate) -> None:
        Gauge(
            "cli_mcp_tls_certificate_expiry_timestamp_seconds",
            "When the TLS certificate in use expires, in seconds since 1970",
            registry=self._registry,
        ).set_function(lambda: certificate.expires_at.timestamp())
