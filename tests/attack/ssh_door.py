"""An SSH gateway in front of a backend without sandboxes: `python -m tests.attack.ssh_door DIR`.

It prints a line of JSON, port and host key as known_hosts(5) has it, and ends with its standard input.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path

from cli_mcp.api.instance import SshRoute
from ssh_gateway.admission import Limits
from tests.mcp_server.fake_backend import FakeBackend, outcome
from tests.ssh_gateway.harness import running_gateway

LONG_OUTPUT_BYTES = 1 << 20


async def main(directory: Path) -> None:
    logging.basicConfig(level=logging.ERROR)
    authorized = (directory / "authorized_keys").read_text().splitlines()
    backend = FakeBackend(outcome=outcome(b"x" * LONG_OUTPUT_BYTES))
    short = FakeBackend()
    run = backend.run

    async def by_command(session, command, timeout_seconds, on_progress):  # type: ignore[no-untyped-def]
        chosen = run if command == "long" else short.run
        return await chosen(session, command, timeout_seconds, on_progress)

    backend.run = by_command  # type: ignore[method-assign]
    # As many as an attacker with addresses of its own may open.
    limits = Limits(connections_per_minute_per_address=100_000, logins_per_minute_per_user=100_000)
    async with running_gateway(
        directory / "gateway", backend=backend, authorized=authorized, limits=limits
    ) as gateway:
        gateway.routes[:] = [SshRoute(usernamePattern="^[a-z0-9-]+$", authorizedKeysSecret="agents")]
        print(json.dumps({"port": gateway.port, "host_key": gateway.host_key.public_key}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
