"""The credential proxy beside no proxy and beside mitmproxy with the same rules: `make bench-proxy`.

Every figure is the median of several rounds, in each of which all take their turn, so that what else the
machine does hits all alike. Origin, clients and proxy share its cores: with two of them, "no proxy" is
limited by the client, and each proxy by what is left of one core. CPU is what the proxy itself used.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import requests
import yaml

from cli_mcp.authority import generate_authority
from cli_mcp.kubeconfig import parse_kubeconfig
from cli_mcp.proxy_config import UpstreamConfig, proxy_config
from tests.cred_proxy.origin import PrivateAuthority

HOST = "127.0.0.1"
TOKEN = "token-of-the-benchmark"
MITMDUMP = Path(".venv-mitmproxy/bin/mitmdump")
RULES = Path(__file__).with_name("mitmproxy_rules.py")
WATCHES = 1000
START_SECONDS = 30


@dataclass(frozen=True)
class Target:
    """One way to the origin; `process` is the proxy on it."""

    name: str
    authority: Path
    port: int | None = None
    process: subprocess.Popen[bytes] | None = None

    def cpu_seconds(self) -> float:
        if self.process is None:
            return 0.0
        # proc_pid_stat(5): utime and stime, after the name in parentheses.
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_megabytes(self) -> float:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True)
class Figures:
    """Of one round, or the medians of several; `cpu_ms` is the proxy's, for each request."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float

    def __str__(self) -> str:
        text = f"{self.per_second:9.1f}/s  p50 {self.p50_ms:8.2f} ms  p99 {self.p99_ms:8.2f} ms"
        return text + f"  CPU {self.cpu_ms:6.2f} ms" * bool(self.cpu_ms)


@dataclass(frozen=True)
class Load:
    """The program that is origin and client, and the origin that it serves."""

    command: Sequence[str]
    origin: str

    def arguments(self, target: Target, mode: str, path: str, clients: int) -> list[str]:
        proxy = ["--proxy", f"{HOST}:{target.port}"] if target.port else []
        where = ["--origin", self.origin, *proxy, "--ca", str(target.authority)]
        return [*self.command, "client", *where, "--mode", mode, "--path", path, "--clients", str(clients)]

    def run(self, target: Target, mode: str, path: str, clients: int, seconds: float) -> Figures:
        used = target.cpu_seconds()
        command = [*self.arguments(target, mode, path, clients), "--seconds", str(seconds)]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return Figures(
            result["count"] / result["seconds"],
            result["p50_ms"],
            result["p99_ms"],
            (target.cpu_seconds() - used) / result["count"] * 1000,
        )

    def kilobytes_per_watch(self, target: Target, count: int) -> float:
        before = target.resident_megabytes()
        command = self.arguments(target, "watches", "/watch", count)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            return (target.resident_megabytes() - before) * 1000 / count


def medians(rounds: Sequence[Figures]) -> Figures:
    return Figures(
        *(
            median(getattr(one, name) for one in rounds)
            for name in ("per_second", "p50_ms", "p99_ms", "cpu_ms")
        )
    )


def load_command(directory: Path) -> list[str]:
    """The Go program where Go is installed; it costs a tenth of the Python one."""
    source = Path(__file__).with_name("load.go")
    if shutil.which("go") is None:
        print("Go is not installed: the clients are Python, and cost as much as what they measure.")
        return [sys.executable, str(source.with_suffix(".py"))]
    subprocess.run(["go", "build", "-o", directory / "load", source], check=True)
    return [str(directory / "load")]


@contextmanager
def running(
    command: Sequence[str | Path], *, output: int = subprocess.DEVNULL, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=output, env=os.environ | environment) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
    return port


def wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def start_proxy(stack: ExitStack, directory: Path, origin: str, authority: PrivateAuthority) -> Target:
    """`cli-mcp proxy` as in a pod, with one Kubernetes route."""
    certificate, key = generate_authority("benchmark CA", datetime.now(UTC))
    (directory / "ca.crt").write_text(certificate)
    (directory / "ca.key").write_text(key)
    cluster = {
        "server": f"https://{origin}",
        "certificate-authority-data": b64encode(authority.pem.encode()).decode(),
    }
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    text = yaml.safe_dump(kubeconfig)
    (directory / "kubeconfig").write_text(text)
    config = proxy_config(parse_kubeconfig(text).servers, [], UpstreamConfig())
    (directory / "proxy-config.json").write_text(config.model_dump_json(by_alias=True))
    port, metrics_port = free_port(), free_port()
    command: list[str | Path] = [
        *(Path(sys.executable).with_name("cli-mcp"), "proxy", "--ca-dir", directory),
        *("--config", directory / "proxy-config.json", "--kubeconfig", directory / "kubeconfig"),
        *("--listen", f"{HOST}:{port}", "--metrics-listen", f"{HOST}:{metrics_port}"),
        *("--log-level", "warning"),
    ]
    process = stack.enter_context(running(command))
    wait_for(port)
    return Target("proxy", directory / "ca.crt", port, process)


def start_mitmproxy(stack: ExitStack, directory: Path, origin: str, authority: PrivateAuthority) -> Target:
    """As lean as its options make it: no upstream connection before a request, HTTP/1.1, no output."""
    (directory / "origin-ca.pem").write_text(authority.pem)
    port = free_port()
    options = {
        "confdir": directory / "mitmproxy",
        "ssl_verify_upstream_trusted_ca": directory / "origin-ca.pem",
        "connection_strategy": "lazy",
        "upstream_cert": "false",
        "http2": "false",
        "flow_detail": "0",
        "listen_host": HOST,
        "listen_port": port,
    }
    command: list[str | Path] = [
        *(MITMDUMP, "--quiet", "--scripts", RULES),
        *(argument for name, value in options.items() for argument in ("--set", f"{name}={value}")),
    ]
    process = stack.enter_context(running(command, BENCHMARK_TARGET=origin, BENCHMARK_TOKEN=TOKEN))
    wait_for(port)
    return Target("mitmproxy", directory / "mitmproxy" / "mitmproxy-ca-cert.pem", port, process)


def check_rules(target: Target, origin: str) -> None:
    """Both proxies are to do what is measured: swap the credential, and refuse what is not listed."""
    with requests.Session() as session:
        session.trust_env = False
        session.verify = str(target.authority)
        session.proxies = {"https": f"http://{HOST}:{target.port}"}
        shown = session.get(f"https://{origin}/credential", headers={"Authorization": "Bearer stolen"})
        assert shown.text == f"Bearer {TOKEN}", (target.name, shown.text)
        try:
            session.get(f"https://{HOST}:1/")
        except requests.exceptions.ProxyError as error:
            assert "403" in str(error), (target.name, error)
        else:
            raise AssertionError(f"{target.name} let a request through that is not listed")


Measure = Callable[[Target, float], Figures]


def workloads(load: Load) -> dict[str, Measure]:
    def of(mode: str, path: str, clients: int) -> Measure:
        return lambda target, seconds: load.run(target, mode, path, clients, seconds)

    return {
        "keep-alive, 1 KB, 1 client": of("keepalive", "/1k", 1),
        "keep-alive, 1 KB, 16 clients": of("keepalive", "/1k", 16),
        "keep-alive, 1 KB, 64 clients": of("keepalive", "/1k", 64),
        "CONNECT + TLS each, 8 clients": of("connections", "/1k", 8),
        "keep-alive, 100 KB, 8 clients": of("keepalive", "/100k", 8),
        "100 MB, 1 client": of("keepalive", "/100m", 1),
        "event of a watch, 1 client": of("events", "/events", 1),
    }


def compare(measure: Measure, targets: Sequence[Target], rounds: int, seconds: float) -> list[Figures]:
    results: list[list[Figures]] = [[] for _ in targets]
    for _ in range(rounds):
        for target, figures in zip(targets, results, strict=True):
            figures.append(measure(target, seconds))
    return [medians(figures) for figures in results]


def measure_all(load: Load, targets: Sequence[Target], rounds: int, seconds: float) -> None:
    for name, measure in workloads(load).items():
        results = compare(measure, targets, rounds, seconds)
        direct, proxied, *others = results
        print(f"{name}, load {os.getloadavg()[0]:.1f}")
        for target, figures in zip(targets, results, strict=True):
            print(f"  {target.name:<10} {figures}")
        ratio = "".join(
            f", {proxied.per_second / other.per_second:.1f} times mitmproxy's rate" for other in others
        )
        print(f"  the proxy adds {proxied.p50_ms - direct.p50_ms:.2f} ms at p50{ratio}", flush=True)
    for target in targets[1:]:
        loaded = target.resident_megabytes()
        watch = load.kilobytes_per_watch(target, WATCHES)
        print(f"{target.name}: {loaded:.0f} MB resident after all that, {watch:.0f} KB more for each of")
        print(f"  {WATCHES} idle watches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure of a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        authority = PrivateAuthority()
        authority.server_context(HOST, directory)
        command = load_command(directory)
        served = stack.enter_context(
            running([*command, "origin", "--certificate", directory / f"{HOST}.pem"], output=subprocess.PIPE)
        )
        assert served.stdout is not None
        load = Load(command, f"{HOST}:{int(served.stdout.readline())}")
        starts = [start_proxy, *([start_mitmproxy] if MITMDUMP.exists() else [])]
        proxies = [start(stack, directory, load.origin, authority) for start in starts]
        (directory / "origin.crt").write_text(authority.pem)
        for proxy in proxies:
            check_rules(proxy, load.origin)
        measure_all(
            load,
            [Target("no proxy", directory / "origin.crt"), *proxies],
            options.rounds,
            options.seconds,
        )


if __name__ == "__main__":
    main()
