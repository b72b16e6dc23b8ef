"""Verifies an SSH way in with a real MCP client: verify.py USERNAME... -- SSH COMMAND AND OPTIONS.

Each user name must have a sandbox of its own that keeps its state over connections, in both protocol eras.
"""

import sys
from typing import Literal

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

ERAS: tuple[Literal["legacy", "auto"], ...] = ("legacy", "auto")


def server(username: str, ssh: list[str]) -> StdioServerParameters:
    command, *options = ssh
    return StdioServerParameters(command=command, args=["-l", username, *options])


async def run(client: Client, command: str) -> str:
    result = await client.call_tool("bash", {"command": command})
    if result.is_error or result.structured_content is None:
        raise SystemExit(f"{command!r} failed: {result.content}")
    return str(result.structured_content["stdout"]).strip()


async def main(usernames: list[str], ssh: list[str]) -> None:
    for username in usernames:
        async with Client(stdio_client(server(username, ssh)), mode="legacy") as client:
            await run(client, f"echo {username} > who.txt; export WHO={username}")
    for era in ERAS:
        for username in usernames:
            async with Client(stdio_client(server(username, ssh)), mode=era) as client:
                tools = [tool.name for tool in (await client.list_tools()).tools]
                found = await run(
                    client, "echo $WHO $(cat who.txt) $(id -un) $(ls -A ~/.ssh 2>/dev/null | wc -l)"
                )
                if found.split()[:2] != [username, username] or found.split()[-1] != "0":
                    raise SystemExit(f"{username}: not its own sandbox, or a key in it: {found!r}")
                print(f"{username}, MCP {client.protocol_version}: {len(tools)} tools, its own state, no key")


if __name__ == "__main__":
    if "--" not in sys.argv:
        raise SystemExit(__doc__)
    end = sys.argv.index("--")
    anyio.run(main, sys.argv[1:end], sys.argv[end + 1 :])
