"""What local mode costs: a call, a new session, an idle session. Every row has its baseline in the same run.

Run it with `make bench`. It takes about a minute, and more than a handful of other processes on the machine
spoils it.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
import mcp.types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server

from tests.e2e_local.harness import Server as LocalServer
from tests.e2e_local.harness import running

ERAS = {"2025-11-25 (handshake)": "legacy", "2026-07-28 (stateless)": "auto"}
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: `values` and what they are to be compared with."""

    name: str
    values: str
    baseline: str


def percentiles(seconds: Sequence[float]) -> str:
    p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
    return f"p50 {p50 * 1e3:6.2f} ms  p99 {p99 * 1e3:6.2f} ms  {len(seconds) / sum(seconds):6.0f}/s"


async def timed(count: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - started)
    return taken


@contextlib.asynccontextmanager
async def connected(url: str, headers: dict[str, str], mode: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def plain_bash() -> None:
    process = await asyncio.create_subprocess_exec("bash", "-c", "true")
    await process.wait()


def echo_app() -> object:
    """A server of the same library whose one tool does nothing."""
    tool = mcp.types.Tool(name="bash", input_schema={"type": "object"})

    async def list_tools(*_: object) -> mcp.types.ListToolsResult:
        return mcp.types.ListToolsResult(tools=[tool])

    async def call_tool(*_: object) -> mcp.types.CallToolResult:
        return mcp.types.CallToolResult(content=[mcp.types.TextContent(text="", type="text")])

    server: Server[object] = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)
    return server.streamable_http_app(streamable_http_path="/mcp", stateless_http=True)


ECHO = """
import sys, socket, uvicorn
from benchmarks.local import echo_app
# asyncio turns off Nagle's algorithm only for sockets that say that they are TCP.
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listener.bind(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(echo_app(), log_level="error", http="h11")).run([listener])
"""


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ECHO, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/mcp"
    finally:
        process.terminate()
        await process.wait()


async def measure_calls(server: LocalServer, count: int) -> list[Row]:
    rows = []
    fork = percentiles(await timed(count, plain_bash))
    async with echo_server() as echo_url:
        for era, mode in ERAS.items():
            results = []
            for url, headers in ((server.url, server.headers("warm")), (echo_url, {})):
                async with connected(url, headers, mode) as client:

                    async def call(client: Client = client) -> None:
                        await client.call_tool("bash", {"command": "true"})

                    await timed(count // 10, call)
                    results.append(await timed(count, call))
            ours, echo = results
            over = statistics.median(ours) - statistics.median(echo)
            rows.append(Row(f"`true`, {era}", percentiles(ours), f"echo tool     {percentiles(echo)}"))
            rows.append(Row("    over the echo tool", f"p50 {over * 1e3:6.2f} ms", f"`bash -c true` {fork}"))
    return rows


async def measure_first_results(server: LocalServer, count: int) -> Row:
    numbers = iter(range(10**6))

    async def first() -> None:
        answer = await asyncio.to_thread(server.call, f"first-{next(numbers)}", "echo first")
        assert answer.structured["session"] == "new"

    taken = await timed(count, first)
    for number in range(count):
        await asyncio.to_thread(server.end, f"first-{number}", workspace=True)
    baseline = percentiles(await timed(count, plain_bash))
    return Row("new session to first result", percentiles(taken), f"`bash -c true` {baseline}")


def memory_bytes(pids: Sequence[int], field: str) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    total += int(line.split()[1]) * 1024
    return total


def tree(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for thread in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


async def measure_memory(server: LocalServer, sessions: int) -> list[Row]:
    before = {field: memory_bytes(tree(server.pid), field) for field in ("Pss", "Rss")}
    gate = asyncio.Semaphore(4)

    async def begin(number: int) -> None:
        async with gate:
            await asyncio.to_thread(server.call, f"idle-{number}", "true")

    await asyncio.gather(*(begin(number) for number in range(sessions)))
    pids = tree(server.pid)
    after = {field: memory_bytes(pids, field) for field in ("Pss", "Rss")}
    alone = await asyncio.create_subprocess_exec("bash", "-c", "read -r", stdin=asyncio.subprocess.PIPE)
    await asyncio.sleep(0.2)
    bash = {field: memory_bytes([alone.pid], field) / MEBIBYTE for field in ("Pss", "Rss")}
    alone.kill()
    await alone.wait()
    each = {field: (after[field] - before[field]) / sessions / MEBIBYTE for field in after}
    total = {field: after[field] / MEBIBYTE for field in after}
    return [
        Row(
            f"idle session, mean of {sessions}",
            f"PSS {each['Pss']:5.2f} MiB  RSS {each['Rss']:5.2f} MiB",
            f"one idle bash  PSS {bash['Pss']:5.2f} MiB  RSS {bash['Rss']:5.2f} MiB",
        ),
        Row(
            f"server with {sessions} idle sessions",
            f"PSS {total['Pss']:5.0f} MiB  RSS {total['Rss']:5.0f} MiB  {len(pids)} processes",
            f"server alone   PSS {before['Pss'] / MEBIBYTE:5.0f} MiB  "
            f"RSS {before['Rss'] / MEBIBYTE:5.0f} MiB",
        ),
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--new-sessions", type=int, default=50)
    parser.add_argument("--idle-sessions", type=int, default=200)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with running(resources={}) as server:
        server.call("warm", "true")
        rows += await measure_calls(server, arguments.calls)
        rows.append(await measure_first_results(server, arguments.new_sessions))
        rows += await measure_memory(server, arguments.idle_sessions)
    with running(resources={}, warmPoolSize=4) as server:
        await asyncio.sleep(1)
        warm = await measure_first_results(server, 4)
        rows.append(Row("the same with a warm pool", warm.values, warm.baseline))
    user = "root" if os.geteuid() == 0 else "a user"
    print(f"Local mode as {user} on {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    width = max(len(row.name) for row in rows)
    values = max(len(row.values) for row in rows)
    for row in rows:
        print(f"{row.name:<{width}}  {row.values:<{values}}  | {row.baseline}")


if __name__ == "__main__":
    asyncio.run(main())
