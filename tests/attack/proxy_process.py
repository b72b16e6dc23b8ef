"""`cli-mcp proxy` as in a pod, an origin behind it, and clients with addresses of their own, on loopback."""

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cli_mcp.authority import generate_authority
from cli_mcp.proxy_config import AllowlistRouteConfig, UpstreamConfig, proxy_config
from tests.cred_proxy.origin import PrivateAuthority

HOST = "127.0.0.1"
BYSTANDER = "127.0.1.1"
_START_SECONDS = 30
_CALL_SECONDS = 20


@dataclass(frozen=True)
class ProxyProcess:
    """A proxy that runs, and an `origin` (host:port) that it allows."""

    process: subprocess.Popen[bytes]
    port: int
    origin: str
    authority: Path

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))

    def call(self) -> None:
        """One request of a bystander, with a connection, a CONNECT and a handshake of its own."""
        self.request(BYSTANDER)

    def request(self, client: str, path: str = "/small") -> None:
        """One request by the client with this address. Raises OSError and AssertionError."""
        with self.tunnel(client) as tunnel:
            tunnel.sendall(f"GET {path} HTTP/1.1\r\nHost: {self.origin}\r\n\r\n".encode())
            assert tunnel.recv(4096).startswith(b"HTTP/1.1 200 ")

    def tunnel(self, client: str) -> ssl.SSLSocket:
        raw = socket.create_connection((HOST, self.port), _CALL_SECONDS, source_address=(client, 0))
        try:
            raw.sendall(f"CONNECT {self.origin} HTTP/1.1\r\n\r\n".encode())
            answer = raw.recv(4096)
            assert b" 200 " in answer, answer
            return _trust(self.authority).wrap_socket(raw, server_hostname=HOST)
        except BaseException:
            raw.close()
            raise

    @contextmanager
    def greed(self, program: str, clients: int, seconds: float, **options: object) -> Iterator[None]:
        """Attackers, each in a process and with an address of its own; killed at the end of the block."""
        with ExitStack() as stack:
            for number in range(clients):
                arguments = [program, f"127.0.{number + 2}.1", str(self.port), self.origin, str(seconds)]
                more = [f"{name}={value}" for name, value in options.items()]
                command = [sys.executable, "-m", "tests.attack.proxy_greed", *arguments, *more]
                stack.enter_context(_running(command, errors=subprocess.DEVNULL))
            yield


_CONTEXTS: dict[Path, ssl.SSLContext] = {}


def _trust(authority: Path) -> ssl.SSLContext:
    if authority not in _CONTEXTS:
        _CONTEXTS[authority] = ssl.create_default_context(cafile=str(authority))
    return _CONTEXTS[authority]


@contextmanager
def _running(
    command: list[str], output: int | None = None, errors: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=output, stderr=errors) as process:
        try:
            yield process
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def running_proxy(directory: Path) -> Iterator[ProxyProcess]:
    """Its audit log goes to a file in `directory`."""
    authority = PrivateAuthority()
    authority.server_context(HOST, directory)
    with ExitStack() as stack:
        certificate = directory / f"{HOST}.pem"
        origin = stack.enter_context(
            _running(
                [sys.executable, "-m", "tests.attack.proxy_origin", str(certificate)],
                subprocess.PIPE,
                subprocess.DEVNULL,
            )
        )
        assert origin.stdout is not None
        origin_port = int(origin.stdout.readline())
        ca, key = generate_authority("attack CA", datetime.now(UTC))
        (directory / "ca.crt").write_text(ca)
        (directory / "ca.key").write_text(key)
        route = AllowlistRouteConfig(host=HOST, port=origin_port, allow_upgrades=True)
        config = proxy_config([], [route], UpstreamConfig(ca_bundle=authority.pem))
        (directory / "proxy-config.json").write_text(config.model_dump_json(by_alias=True))
        port = _free_port()
        command = [str(Path(sys.executable).with_name("cli-mcp")), "proxy", "--ca-dir", str(directory)]
        command += ["--config", str(directory / "proxy-config.json"), "--log-level", "error"]
        command += ["--listen", f"{HOST}:{port}", "--metrics-listen", f"{HOST}:{_free_port()}"]
        log = stack.enter_context((directory / "audit.log").open("wb"))
        process = stack.enter_context(_running(command, log.fileno()))
        proxy = ProxyProcess(process, port, f"{HOST}:{origin_port}", directory / "ca.crt")
        _wait_for(proxy)
        yield proxy


def _wait_for(proxy: ProxyProcess) -> None:
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return proxy.call()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
