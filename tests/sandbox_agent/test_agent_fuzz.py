"""Bytes that no client would send, for a bounded time, against a real agent."""

import asyncio
import random
import re
import time

from cli_mcp.agent_api import RUN_PATH, RunRequest
from cli_mcp.agent_json import encode_run_request
from tests.sandbox_agent.running_agent import RunningAgent, SignedClient, agent_directory, free_port

_SECONDS = 4.0
_AT_ONCE = 8
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_PIECES = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"0\r\n\r\n", b"5\r\nhello\r\n", b"\r\n\r\n"),
    *(b"GET /health HTTP/1.1\r\n", b"POST /v1/run HTTP/1.1\r\n", b"Host: x\r\n", b"\xff" * 20, b"a" * 3000),
    *(b"Content-Length: 5\r\n", b"Content-Length: 99999999\r\n", b"Transfer-Encoding: chunked\r\n"),
    b"Authorization: Bearer e30.e30.e30\r\n",
)


async def test_no_bytes_get_past_the_signature_or_harm_the_agent() -> None:
    with agent_directory() as directory:
        agent = RunningAgent(directory, free_port())
        agent.start()
        try:
            async with SignedClient(agent) as client:
                assert (await client.run("true")).exit_code == 0
                until = time.monotonic() + _SECONDS
                statuses = set().union(
                    *await asyncio.gather(*(attack(client, seed, until) for seed in range(_AT_ONCE)))
                )
                assert {400, 401} <= statuses <= {200, 400, 401, 404, 405, 408, 411, 413, 431, 503}
                # A change of what does not count leaves a good request; another command never runs.
                assert await client.out("ls") in ("", "signed\n")
                assert "Traceback" not in agent.log and "exception" not in agent.log, agent.log
        finally:
            agent.close()


async def attack(client: SignedClient, seed: int, until: float) -> set[int]:
    """Statuses of the answers. A 200 is for health."""
    chance = random.Random(seed)
    statuses: set[int] = set()
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.agent.port)
        try:
            writer.write(broken_request(client, chance))
            if chance.random() < 0.7:
                writer.write_eof()
            async with asyncio.timeout(0.5):
                while piece := await reader.read(4096):
                    statuses.update(int(status) for status in _STATUS.findall(piece))
        except (TimeoutError, ConnectionError):
            pass  # it waits for more, or has had enough
        finally:
            writer.transport.abort()
    return statuses


def broken_request(client: SignedClient, chance: random.Random) -> bytes:
    """A good request with some bytes cut, repeated or replaced; or pieces of requests in any order."""
    if chance.random() < 0.3:
        return b"".join(chance.choices(_PIECES, k=chance.randrange(1, 12)))
    body = encode_run_request(RunRequest("touch signed", 5))
    token = client.headers(RUN_PATH, body)["Authorization"]
    fields = f"Host: x\r\nAuthorization: {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    data = bytearray(f"POST {RUN_PATH} HTTP/1.1\r\n{fields}".encode() + body)
    for _ in range(chance.randrange(1, 4)):
        # Half of them in the token, which is most of it, would be too many.
        position = chance.choice((0, len(data) - len(body) - 60)) + chance.randrange(len(body) + 60)
        data[position : position + chance.randrange(2)] = chance.choice(_PIECES)
    return bytes(data)
