"""Logs in at the SSH gateway of an instance and speaks MCP there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.operator import kubectl
from tests.ssh_gateway.harness import KEY, LineClient, log_in, speaking

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import asyncssh

    from tests.e2e.instances import Instance


def gateway(instance: Instance) -> str:
    return f"cli-mcp-{instance.name}-ssh"


def jsonpath(instance: Instance, kind: str, name: str, path: str) -> str:
    return str(kubectl("-n", instance.namespace, "get", kind, name, "-o", f"jsonpath={path}"))


async def connect(
    instance: Instance, username: str, key: asyncssh.SSHKey = KEY
) -> asyncssh.SSHClientConnection:
    """A login at the Service, by the host key that the instance publishes."""
    address = jsonpath(instance, "service", gateway(instance), "{.spec.clusterIP}")
    published = jsonpath(instance, "climcpinstance", instance.name, "{.status.ssh.knownHosts}")
    return await log_in(address, 22, username, key, f"{address} {published.split(maxsplit=1)[1]}")


def client(instance: Instance, username: str) -> AbstractAsyncContextManager[LineClient]:
    return speaking(connect(instance, username))


async def stdout(connected: LineClient, command: str) -> str:
    result = await connected.run(command)
    assert "structuredContent" in result, result
    return str(result["structuredContent"]["stdout"])
