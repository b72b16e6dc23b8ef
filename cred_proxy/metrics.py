"""Prometheus metrics of the proxy. Every label has a small fixed set of values; none comes from a client."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cred_proxy.audit import AuditRecord

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 300)


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.connections = Gauge(
            "cli_mcp_proxy_connections", "Open connections of clients", registry=registry
        )
        self.hung_up = Counter(
            "cli_mcp_proxy_hung_up",
            "Connections over the limit of a client that keeps the proxy busy, ended without an answer",
            registry=registry,
        )
        self.current = Gauge(
            "cli_mcp_proxy_config_current",
            "1 while what is in the files is in use, 0 while they are invalid and the previous state is kept",
            ["source"],
            registry=registry,
        )
        self.reloads = Counter(
            "cli_mcp_proxy_reloads", "Changes of the files", ["source", "outcome"], registry=registry
        )
        self._requests = Counter(
            "cli_mcp_proxy_requests", "Requests by class of status", ["status"], registry=registry
        )
        self._refusals = Counter(
            "cli_mcp_proxy_refusals",
            "Connections and requests that the proxy answered or ended by itself",
            ["event", "reason"],
            registry=registry,
        )
        self._bytes = Counter("cli_mcp_proxy_body_bytes", "Bytes of bodies", ["direction"], registry=registry)
        self._bytes_up = self._bytes.labels("up")
        self._bytes_down = self._bytes.labels("down")
        self._duration = Histogram(
            "cli_mcp_proxy_request_seconds",
            "From the head of a request to the end of its response",
            buckets=_SECONDS,
            registry=registry,
        )
        self._by_class = {
            number: self._requests.labels(f"{number}xx" if number else "none") for number in range(6)
        }

    def observe(self, record: AuditRecord) -> None:
        if record.reason is not None:
            self._refusals.labels(record.event, record.reason.value).inc()
        if record.event == "connect":
            return
        # An origin may invent a status beyond the five classes.
        self._by_class.get(record.status // 100, self._by_class[5]).inc()
        self._bytes_up.inc(record.bytes_up)
        self._bytes_down.inc(record.bytes_down)
        self._duration.observe(record.duration_ms / 1000)
