"""`cli-mcp hooks` as a process."""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli_mcp.authority import generate_authority
from hooks import main
from tests.cred_proxy.test_main import free_port
from tests.hooks.test_app import HOOKS, REQUEST

DEADLINE_SECONDS = 60
START = "import sys; from hooks import main; sys.exit(main.main(sys.argv[1:]))"


@contextmanager
def running(*arguments: str) -> Iterator[int]:
    """The port of a hook process that has just begun to listen."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, *arguments], stderr=subprocess.PIPE, env=os.environ, text=True
    )
    try:
        yield _port(process)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def _port(process: "subprocess.Popen[str]") -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if "Listening at" in line:
            return int(line.split("Listening at: ")[1].split(" ")[0].rpartition(":")[2])
    raise AssertionError(f"ended with {process.wait()}")


def post(url: str, context: ssl.SSLContext | None = None, **headers: str) -> int:
    request = urllib.request.Request(url, json.dumps(REQUEST).encode(), headers)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_the_hooks_answer_on_loopback_and_end_when_told() -> None:
    with running("--listen", "127.0.0.1:0") as port:
        assert post(f"http://127.0.0.1:{port}/sync") == 200


def test_elsewhere_they_want_tls_and_a_token_which_may_change(tmp_path: Path) -> None:
    certificate, key = generate_authority("localhost", datetime.now(UTC))
    (tmp_path / "crt").write_text(certificate)
    (tmp_path / "key").write_text(key)
    token = tmp_path / "token"
    token.write_text("first\n")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    tls = ["--tls-cert", str(tmp_path / "crt"), "--tls-key", str(tmp_path / "key")]
    with running("--listen", "0.0.0.0:0", *tls, "--token-file", str(token)) as port:
        url = f"https://127.0.0.1:{port}/sync"
        assert post(url, context) == 401
        assert post(url, context, Authorization="Bearer first") == 200
        token.write_text("second\n")
        assert post(url, context, Authorization="Bearer first") == 401
        assert post(url, context, Authorization="Bearer second") == 200


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "0.0.0.0:8070"],
        ["--listen", ":8070"],
        ["--listen", "10.0.0.1:8070", "--tls-cert", "c", "--tls-key", "k"],
        ["--listen", "10.0.0.1:8070", "--token-file", "t"],
    ],
)
def test_secrets_are_not_served_to_a_network_without_tls_and_token(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    assert "is not loopback" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.1.2.3:1", "localhost:1", "[::1]:1"])
def test_loopback_needs_neither(listen: str) -> None:
    main._check(main._parser().parse_args(["--listen", listen]))


def test_a_name_is_no_address_to_listen_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--listen", "127.evil.example:8070"])
    assert "'127.evil.example' is no IP address" in capsys.readouterr().err


def test_a_second_listener_has_metrics_and_no_hooks() -> None:
    metrics = free_port()
    with running("--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{metrics}") as port:
        assert post(f"http://127.0.0.1:{port}/sync") == 200
        for path in HOOKS:
            assert post(f"http://127.0.0.1:{metrics}{path}") == 405
        counted = 'cli_mcp_hook_requests_total{hook="sync",outcome="ok"} 1.0'
        for asked in (port, metrics):
            assert counted in get(f"http://127.0.0.1:{asked}/metrics")


def test_whoever_is_slow_at_the_metrics_does_not_keep_the_hooks_from_answering() -> None:
    metrics = free_port()
    with (
        running("--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{metrics}") as port,
        ExitStack() as slow,
    ):
        assert post(f"http://127.0.0.1:{port}/sync") == 200
        for _ in range(3 * main.THREADS):
            connection = slow.enter_context(socket.create_connection(("127.0.0.1", metrics)))
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert post(f"http://127.0.0.1:{port}/sync") == 200
        assert "cli_mcp_hook_requests_total" in get(f"http://127.0.0.1:{metrics}/metrics")


def test_a_platform_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLI_MCP_PLATFORM", "mainframe")
    assert main.main([]) == 2
    assert "CLI_MCP_PLATFORM is 'mainframe'; use generic or openshift" in capsys.readouterr().err
