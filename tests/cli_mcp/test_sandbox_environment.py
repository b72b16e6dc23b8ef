"""The environment of every sandbox. That clients understand it is shown with the clients themselves."""

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_mcp.names import CA_PATH
from cli_mcp.sandbox_environment import (
    OPERATOR_OWNED_ENV,
    SYSTEM_FILES,
    sandbox_environment,
    with_defaults,
)

PROXY = "http://127.0.0.1:3128"
OWN_PROGRAMS = "/workspace/.local/bin"


@pytest.fixture
def own_server() -> Iterator[int]:
    """Its port; it answers 200 on all addresses of both families."""

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with Server(("::", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1]
        server.shutdown()


def test_the_proxy_is_named_in_both_cases_and_the_sandboxs_own_servers_are_not_behind_it() -> None:
    environment = sandbox_environment(PROXY)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        assert environment[name] == PROXY
    own = "localhost,sandbox,127.0.0.1,127.0.0.0/8,0.0.0.0,::1"
    assert environment["NO_PROXY"] == environment["no_proxy"] == own


@pytest.mark.parametrize(
    ("hosts", "no_proxy"),
    [
        ({"pypi.org"}, "localhost,sandbox,127.0.0.1,127.0.0.0/8,0.0.0.0,::1"),
        ({"localhost"}, "sandbox,127.0.0.1,127.0.0.0/8,0.0.0.0,::1"),
        # No network may hold what is behind the proxy.
        ({"localhost", "127.0.0.1", "::1"}, "sandbox,0.0.0.0"),
        ({"127.0.0.9"}, "localhost,sandbox,127.0.0.1,0.0.0.0,::1"),
    ],
)
def test_a_target_on_loopback_is_behind_the_proxy(hosts: set[str], no_proxy: str) -> None:
    assert sandbox_environment(PROXY, hosts)["NO_PROXY"] == no_proxy


def test_every_variable_is_the_operators_and_none_holds_more_than_addresses_and_paths() -> None:
    environment = sandbox_environment(PROXY) | sandbox_environment(PROXY, kubernetes=False)
    assert environment.keys() == OPERATOR_OWNED_ENV
    assert {environment[name] for name in environment if "CA" in name or "CERT" in name} == {CA_PATH}


def test_a_sandbox_without_a_kubernetes_target_has_no_kubeconfig() -> None:
    environment = sandbox_environment(PROXY, kubernetes=False)
    assert "KUBECONFIG" not in environment
    # Without a path it would be a server's address to look up, and five lines of kubectl's.
    assert "no-kubernetes-target" in environment["KUBERNETES_MASTER"]
    assert "KUBERNETES_MASTER" not in sandbox_environment(PROXY)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
@pytest.mark.parametrize("arguments", [("get", "pods"), ("auth", "can-i", "get", "pods")])
def test_kubectl_without_a_target_says_so_in_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    environment = sandbox_environment(PROXY, kubernetes=False) | {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
    }
    said = subprocess.run(
        ["kubectl", *arguments], env=environment, capture_output=True, text=True, timeout=30
    )
    assert said.returncode != 0
    assert said.stdout == ""
    assert said.stderr.count("\n") == 1
    assert "no-kubernetes-target-in-this-sandbox" in said.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"LANG": "C.UTF-8", "TERM": "dumb", "PIP_BREAK_SYSTEM_PACKAGES": "1", "PATH": OWN_PROGRAMS}),
        ({"LANG": "de_DE.UTF-8"}, {"LANG": "de_DE.UTF-8", "TERM": "dumb"}),
        ({"LC_ALL": "POSIX"}, {"LC_ALL": "POSIX", "LANG": None}),
        ({"LC_CTYPE": "C.UTF-8"}, {"LANG": None}),
        (
            {"TERM": "xterm", "PIP_BREAK_SYSTEM_PACKAGES": "0"},
            {"TERM": "xterm", "PIP_BREAK_SYSTEM_PACKAGES": "0"},
        ),
        ({"PATH": "/usr/bin:/bin"}, {"PATH": f"{OWN_PROGRAMS}:/usr/bin:/bin"}),
        ({"PATH": f"/usr/bin:{OWN_PROGRAMS}"}, {"PATH": f"/usr/bin:{OWN_PROGRAMS}"}),
    ],
)
def test_what_image_and_instance_do_not_say_has_a_default(
    given: dict[str, str], expected: dict[str, str | None]
) -> None:
    environment = with_defaults(given)
    assert {name: environment.get(name) for name in expected} == expected


_EVERYWHERE = {"localhost", "127.0.0.1", "127.0.0.2", "0.0.0.0", "[::1]"}
_AIOHTTP = """
import aiohttp, asyncio
async def get():
    async with aiohttp.ClientSession(trust_env=True) as client:
        await client.get(url)
asyncio.run(get())
"""


@pytest.mark.parametrize(
    ("client", "works"),
    [
        ("import httpx2; httpx2.get(url, timeout=5)", _EVERYWHERE),
        (_AIOHTTP, _EVERYWHERE - {"127.0.0.2"}),
        (
            "import urllib.request; urllib.request.urlopen(url, timeout=5)",
            _EVERYWHERE - {"127.0.0.2", "[::1]"},
        ),
        ("import subprocess; subprocess.run(['curl', '-sf', '-m5', url], check=True)", _EVERYWHERE),
        ("import subprocess; subprocess.run(['wget', '-qO-', url], check=True)", _EVERYWHERE - {"127.0.0.2"}),
    ],
    ids=["httpx2", "aiohttp", "urllib", "curl", "wget"],
)
def test_clients_reach_a_server_of_the_sandbox_without_the_proxy(
    own_server: int, tmp_path: Path, client: str, works: set[str]
) -> None:
    """A client goes without those that it cannot be told of."""
    if "wget" in client and shutil.which("wget") is None:
        pytest.skip("there is no wget here")
    unreachable = "http://127.0.0.1:9"
    environment = sandbox_environment(unreachable) | {"PATH": os.environ["PATH"]}
    for variable in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        environment.pop(variable)  # there is no such file here
    reached = set()
    for host in _EVERYWHERE:
        program = f"url = 'http://{host}:{own_server}/'\n{client}"
        command = [sys.executable, "-c", program]
        ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True)
        if ran.returncode == 0:
            reached.add(host)
    assert reached == works


def test_wget_and_git_find_in_their_files_what_no_variable_tells_them(tmp_path: Path) -> None:
    assert SYSTEM_FILES["/etc/wgetrc"] == f"ca_certificate = {CA_PATH}\n"
    (tmp_path / "gitconfig").write_text(SYSTEM_FILES["/etc/gitconfig"])
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIT_CONFIG_SYSTEM": str(tmp_path / "gitconfig"),
    }

    def git(*arguments: str) -> str:
        ran = subprocess.run(
            ["git", *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message=x")
    assert git("log", "--format=%an <%ae>") == "sandbox <sandbox@localhost>\n"
    git("config", "user.name", "Agent")
    git("commit", "--quiet", "--allow-empty", "--message=y")
    assert git("log", "-1", "--format=%an") == "Agent\n"
