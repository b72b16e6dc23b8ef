"""What is allowed in an instance and probably not meant."""

from collections.abc import Iterator

from cli_mcp.api import duration, quantity
from cli_mcp.api.instance import CliMcpInstance
from cli_mcp.api.pod import Resources
from cli_mcp.api.problems import Path, Problem
from cli_mcp.sandbox_environment import OPERATOR_OWNED_ENV


def advice(instance: CliMcpInstance) -> Iterator[Problem]:
    """Warnings, each with the remedy."""
    sandbox = instance.spec.sandbox
    if instance.spec.proxy is None:
        yield Problem(
            ("spec",), "no proxy, so a sandbox would reach nothing and a cluster starts none; add one"
        )
    if duration.parse_seconds(sandbox.idle_timeout) <= 0:
        yield Problem(
            ("spec", "sandbox", "idleTimeout"), "zero and negative mean 30m; write the time you mean"
        )
    for index, variable in enumerate(sandbox.env):
        if variable.name in OPERATOR_OWNED_ENV:
            text = f"{variable.name} is set by the operator, which ignores this entry; remove it"
            yield Problem(("spec", "sandbox", "env", index, "name"), text)
    yield from _fractions_of_bytes(sandbox.resources, ("spec", "sandbox", "resources"))
    if instance.spec.server_container is not None:
        yield from _fractions_of_bytes(
            instance.spec.server_container.resources, ("spec", "serverContainer", "resources")
        )


def _fractions_of_bytes(resources: Resources, path: Path) -> Iterator[Problem]:
    for kind, entries in (("requests", resources.requests), ("limits", resources.limits)):
        for name in ("memory", "ephemeral-storage"):
            if name in entries and quantity.parse(entries[name]).denominator != 1:
                text = f"{entries[name]} is a fraction of a byte; use Mi or Gi"
                yield Problem((*path, kind, name), text)
