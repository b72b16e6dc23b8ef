"""Logs in at the SSH gateway of an instance and speaks MCP there."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncssh

from tests.e2e.operator import kubectl
from tests.ssh_gateway.harness import KEY, LineClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
    return await asyncssh.connect(
        address,
        username=username,
        client_keys=[key],
        known_hosts=asyncssh.import_known_hosts(f"{address} {published.split(maxsplit=1)[1]}"),
        agent_path=None,
        config=None,
    )


@asynccontextmanager
async def client(instance: Instance, username: str) -> AsyncIterator[LineClient]:
    async with await connect(instance, username) as connection:
        made = LineClient(connection, await connection.create_process(encoding=None))
        await made.initialize()
        yield made


async def stdout(connected: LineClient, command: str) -> str:
    result = await connected.run(command)
    assert "structuredContent" in result, result
    return str(result["structuredContent"]["stdout"])
