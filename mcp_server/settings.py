"""What an operator may choose about the MCP server; everything has a default that is safe on loopback."""

from dataclasses import dataclass

# The names of this machine on its loopback interface, as a Host or Origin header has them.
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`allowed_hosts` are the names, without port, that a Host header may have; None accepts any, for a
    server behind a load balancer of unknown name. A browser's Origin must be one of `allowed_origins`
    (scheme://host[:port]) or on one of `allowed_hosts`.
    """

    allowed_hosts: frozenset[str] | None = LOOPBACK_HOSTS
    allowed_origins: frozenset[str] = frozenset()
    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout_seconds: float = 30.0
    progress_interval_seconds: float = 1.0
