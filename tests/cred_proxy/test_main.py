"""`cli-mcp proxy` as a process: real clients, rotation on disk, and not one secret in what it writes."""

import asyncio
import base64
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import yaml

from cli_mcp.authority import generate_authority
from cli_mcp.kubeconfig import DUMMY_TOKEN, dummy_kubeconfig, parse_kubeconfig
from cli_mcp.proxy_config import AllowlistRouteConfig, UpstreamConfig, proxy_config
from cred_proxy.main import main, parse_options
from tests.cred_proxy.harness import DEADLINE_SECONDS
from tests.cred_proxy.origin import Origin, PrivateAuthority, Received, answer

TOKEN = "real-token-of-the-kubeconfig"
STOLEN = "token-that-the-client-made-up"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class ProxyProcess:
    """The process, on files as a pod has them: every directory a symbolic link that is exchanged at once."""

    def __init__(self, directory: Path, authority: PrivateAuthority, api: Origin, files: Origin) -> None:
        self.directory, self.authority, self.api, self.files = directory, authority, api, files
        self.port, self.metrics_port = free_port(), free_port()
        self.versions = 0
        self.output = b""
        certificate, self.ca_key = generate_authority("sandbox CA", datetime.now(UTC))
        self.mount("ca", {"ca.crt": certificate, "ca.key": self.ca_key})
        self.mount("kubeconfig", {"kubeconfig": self.kubeconfig(TOKEN)})
        config = proxy_config(
            parse_kubeconfig(self.kubeconfig(TOKEN)).servers,
            [AllowlistRouteConfig(host=files.host, port=files.port)],
            UpstreamConfig(ca_bundle=authority.pem),
        )
        self.mount("config", {"proxy-config.json": config.model_dump_json(by_alias=True)})

    def mount(self, name: str, files: dict[str, str]) -> None:
        """What the kubelet does: a new directory, then one rename of the link that leads to it."""
        self.versions += 1
        mount = self.directory / name
        mount.mkdir(exist_ok=True)
        version = mount / f"..{self.versions}"
        version.mkdir()
        for file, content in files.items():
            (version / file).write_text(content)
            if not (mount / file).is_symlink():
                (mount / file).symlink_to(f"..data/{file}")
        (mount / "..new").symlink_to(version.name)
        (mount / "..new").rename(mount / "..data")

    def kubeconfig(self, token: str) -> str:
        ca = base64.b64encode(self.authority.pem.encode()).decode()
        server = f"https://{self.api.host}:{self.api.port}"
        return yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            }
        )

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca" / "ca.crt"

    @property
    def environment(self) -> dict[str, str]:
        """What a sandbox has."""
        proxy, ca = f"http://127.0.0.1:{self.port}", str(self.ca_file)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
            "HTTP_PROXY": proxy,
            "http_proxy": proxy,
            "SSL_CERT_FILE": ca,
            "CURL_CA_BUNDLE": ca,
            "REQUESTS_CA_BUNDLE": ca,
            "GIT_SSL_CAINFO": ca,
            "NODE_EXTRA_CA_CERTS": ca,
            "NODE_USE_ENV_PROXY": "1",
        }

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from cli_mcp.cli import main; sys.exit(main())",
            "proxy",
            *("--config", str(self.directory / "config" / "proxy-config.json")),
            *("--kubeconfig", str(self.directory / "kubeconfig" / "kubeconfig")),
            *("--ca-dir", str(self.directory / "ca"), "--log-level", "debug", "--drain-seconds", "5"),
            *("--listen", f"127.0.0.1:{self.port}", "--metrics-listen", f"127.0.0.1:{self.metrics_port}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONASYNCIODEBUG": "1", "PYTHONWARNINGS": "default"},
        )
        self.reading = asyncio.create_task(self._read())
        await self.says(b"listening on")

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(65536):
            self.output += chunk

    async def says(self, text: bytes) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while text not in self.output:
                assert self.process.returncode is None, self.output.decode()
                await asyncio.sleep(0.02)

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.reading
            return await self.process.wait()

    async def run(self, *command: str, **environment: str) -> tuple[int, str]:
        """A client's exit status and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.environment | environment,
        )
        async with asyncio.timeout(DEADLINE_SECONDS):
            output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def fetch(self, path: str) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.metrics_port}{path}") as response,
        ):
            assert response.status == 200
            return await response.text()


@pytest.fixture
async def proxy(origin_authority: PrivateAuthority, tmp_path: Path) -> AsyncIterator[ProxyProcess]:
    api, files = Origin("127.0.0.1"), Origin("localhost")
    for origin in (api, files):
        await origin.start(origin_authority.server_context(origin.host, tmp_path))
    proxy = ProxyProcess(tmp_path, origin_authority, api, files)
    await proxy.start()
    yield proxy
    await proxy.stop()
    await asyncio.gather(api.stop(), files.stop())


PYTHON = """
from urllib.request import Request, urlopen
print(urlopen(Request('{url}', headers={{'Authorization': 'x'}})).read())
"""
REQUESTS = "import requests; print(requests.get('{url}', headers={{'Authorization': 'x'}}).text)"
AIOHTTP = """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        print(await (await session.get('{url}', headers={{'Authorization': 'x'}})).text())
asyncio.run(main())
"""
NODE = "fetch('{url}', {{headers: {{authorization: 'x'}}}}).then(r => r.text()).then(console.log)"
CLIENTS = {
    "curl": ["curl", "-sS", "{url}"],
    "curl, http/2 preferred": ["curl", "-sS", "--http2", "{url}"],
    "curl, no verification": ["curl", "-sS", "-k", "{url}"],
    "curl, own authority": ["curl", "-sS", "--cacert", "{ca}", "{url}"],
    "curl, own credentials": ["curl", "-sS", "-u", "a:b", "-H", "X-Api-Key: x", "-b", "session=x", "{url}"],
    "curl, own token": ["curl", "-sS", "-H", f"Authorization: Bearer {STOLEN}", "{url}"],
    "curl, proxy credentials": ["curl", "-sS", "--proxy-user", "a:b", "{url}"],
    "python urllib": [sys.executable, "-c", PYTHON],
    "python requests": [sys.executable, "-c", REQUESTS],
    "python aiohttp": [sys.executable, "-c", AIOHTTP],
    "node fetch": ["node", "-e", NODE],
}
CREDENTIALS = ("authorization", "x-api-key", "cookie", "proxy-authorization")


def asked_by_clients(origin: Origin) -> list[Received]:
    """What the proxy did not ask by itself, to see whether its targets answer."""
    return [it for it in origin.requests if it.values("user-agent") != ["cli-mcp-proxy/reachability"]]


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_works_and_the_origin_sees_the_injected_credential_alone(
    proxy: ProxyProcess, name: str
) -> None:
    if not shutil.which(CLIENTS[name][0]):
        pytest.skip(f"{CLIENTS[name][0]} is not installed")
    for origin, expected in ((proxy.api, [("authorization", f"Bearer {TOKEN}")]), (proxy.files, [])):
        url = f"https://{origin.host}:{origin.port}/api/v1/pods"
        command = [part.format(url=url, ca=proxy.ca_file) for part in CLIENTS[name]]
        status, output = await proxy.run(*command)
        if name.startswith("node") and "ECONNREFUSED" not in output and status != 0:
            pytest.skip("this node does not take its proxy from the environment")
        assert (status, output.strip().strip("b'")) == (0, "ok")
        fields = [(key.lower(), value) for key, value in asked_by_clients(origin)[-1].fields]
        sent = [field for field in fields if field[0] in CREDENTIALS]
        assert sent == expected


async def test_what_is_not_listed_says_so_to_the_user(proxy: ProxyProcess) -> None:
    status, output = await proxy.run("curl", "-sSv", "https://example.com/")
    assert status == 56
    assert "403 domain not allowed" in output
    status, output = await proxy.run("curl", "-sS", "http://example.com/")
    assert "only https through CONNECT" in output
    status, output = await proxy.run("curl", "-sS", f"https://127.0.0.1:{proxy.files.port}/")
    assert status == 56
    assert asked_by_clients(proxy.files) == []


async def test_git_clones_over_https(proxy: ProxyProcess, tmp_path: Path) -> None:
    work, bare = tmp_path / "work", tmp_path / "served.git"
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (
        ["git", "init", "-q", str(work)],
        ["git", "-C", str(work), *identity, "commit", "-q", "--allow-empty", "-m", "the message"],
        ["git", "clone", "-q", "--bare", str(work), str(bare)],
        ["git", "-C", str(bare), "update-server-info"],
    ):
        status, output = await proxy.run(*command)
        assert status == 0, output

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        file = bare / request.target.removeprefix("/served.git/").partition("?")[0]
        if file.is_file():
            content = file.read_bytes()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(content)
            )
            writer.write(content)
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    proxy.files.respond = respond
    url = f"https://localhost:{proxy.files.port}/served.git"
    status, output = await proxy.run("git", "clone", "-q", url, str(tmp_path / "cloned"))
    assert status == 0, output
    _, log = await proxy.run("git", "-C", str(tmp_path / "cloned"), "log", "--format=%s")
    assert log == "the message\n"


async def test_a_mounted_change_is_picked_up_and_a_bad_one_is_said(proxy: ProxyProcess) -> None:
    curl = ("curl", "-sS", f"https://127.0.0.1:{proxy.api.port}/api")
    await proxy.run(*curl)
    proxy.mount("kubeconfig", {"kubeconfig": proxy.kubeconfig("rotated-token")})
    await proxy.says(b"routing reloaded")
    await proxy.run(*curl)
    proxy.mount("kubeconfig", {"kubeconfig": "token: half-written-token"})
    await proxy.says(b"routing stays as it was")
    await proxy.run(*curl)
    assert [request.values("authorization") for request in asked_by_clients(proxy.api)] == [
        [f"Bearer {TOKEN}"],
        ["Bearer rotated-token"],
        ["Bearer rotated-token"],
    ]
    ready = json.loads(await proxy.fetch("/ready"))
    assert ready["status"] == "ready"
    assert "kubeconfig" in ready["problems"]["routing"]
    assert 'cli_mcp_proxy_config_current{source="routing"} 0.0' in await proxy.fetch("/metrics")
    proxy.mount("kubeconfig", {"kubeconfig": proxy.kubeconfig("last-token")})
    async with asyncio.timeout(DEADLINE_SECONDS):
        while json.loads(await proxy.fetch("/ready"))["problems"]:
            await asyncio.sleep(0.1)


async def test_nothing_that_the_process_writes_holds_a_credential_a_header_or_a_body(
    proxy: ProxyProcess,
) -> None:
    url = f"https://127.0.0.1:{proxy.api.port}"
    secrets = [
        "value-of-a-header", "body-of-a-request", "query-of-a-request", "a-cookie", "body-of-a-response",
        "header-of-a-response", TOKEN, STOLEN, "cHJveHk6cGFzc3dvcmQ=", "BEGIN PRIVATE", "half-written-token",
    ]  # fmt: skip

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        kind = request.target.partition("?")[0]
        if kind == "/broken":
            writer.write(
                b"HTTP/1.1 200 OK\r\nX: header-of-a-response\r\nX-\x00: header-of-a-response\r\n\r\n"
            )
        elif kind == "/cut":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nbody-of-a-response")
            await writer.drain()
            writer.transport.abort()
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\nX: header-of-a-response\r\nContent-Length: 18\r\n\r\nbody-of-a-response"
            )

    proxy.api.respond = respond
    for path in ("/api", "/broken", "/cut", "/api/v1/nodes/n/proxy/x", "/a//b"):
        await proxy.run(
            *("curl", "-sS", "--proxy-user", "proxy:password", "-H", f"Authorization: Bearer {STOLEN}"),
            *("-H", "X: value-of-a-header", "-b", "a-cookie", "-d", "body-of-a-request"),
            f"{url}{path}?q=query-of-a-request",
        )
    for malformed in (
        "X : value-of-a-header",
        "X: value-of-a-header\xff",
        "Content-Length: value-of-a-header",
    ):
        await proxy.run("curl", "-sS", "-H", malformed, f"{url}/api")
    proxy.mount("kubeconfig", {"kubeconfig": "users: [{name: u, user: {token: half-written-token"})
    proxy.mount("ca", {"ca.crt": "nonsense", "ca.key": proxy.ca_key})
    await proxy.says(b"authority stays as it was")
    metrics = await proxy.fetch("/metrics") + await proxy.fetch("/ready")
    assert await proxy.stop() == 0
    assert len(proxy.api.requests) >= 3
    assert b'"path": "/api/v1/nodes/n/proxy/x"' in proxy.output
    written = proxy.output.decode() + metrics
    assert [secret for secret in secrets if secret in written] == []
    assert "Traceback" not in written


async def test_a_flood_of_refusals_is_a_few_lines_and_their_number_at_the_end_too(
    proxy: ProxyProcess,
) -> None:
    async def refused() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"CONNECT refused.test:443 HTTP/1.1\r\n\r\n")
        assert await reader.read()
        writer.close()

    for _ in range(200):
        await refused()
    assert await proxy.stop() == 0
    lines = [json.loads(line) for line in proxy.output.decode().splitlines() if line.startswith("{")]
    assert sum(line.get("repeated", 1) for line in lines) == 200
    assert len(lines) < 70
    assert lines[-1]["target"] == "refused.test:443"


async def test_metrics_have_no_label_that_a_client_chooses(proxy: ProxyProcess) -> None:
    for number in range(5):
        await proxy.run("curl", "-sS", f"https://host-{number}.test/")
        await proxy.run(
            "curl", "-sS", "-X", f"M{number}", f"https://localhost:{proxy.files.port}/path-{number}"
        )
    metrics = await proxy.fetch("/metrics")
    assert 'cli_mcp_proxy_refusals_total{event="connect",reason="domain-not-allowed"} 5.0' in metrics
    assert "host-" not in metrics
    assert "path-" not in metrics
    assert "127.0.0.1" not in metrics
    assert json.loads(await proxy.fetch("/live")) == {"status": "ok"}


async def test_a_client_sends_the_dummy_token_of_its_kubeconfig_and_it_goes_no_further(
    proxy: ProxyProcess,
) -> None:
    dummy = yaml.safe_load(dummy_kubeconfig(parse_kubeconfig(proxy.kubeconfig(TOKEN)), str(proxy.ca_file)))
    token = dummy["users"][0]["user"]["token"]
    assert token == DUMMY_TOKEN
    server = dummy["clusters"][0]["cluster"]["server"]
    await proxy.run("curl", "-sS", "-H", f"Authorization: Bearer {token}", f"{server}/api")
    assert proxy.api.requests[0].values("authorization") == [f"Bearer {TOKEN}"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_kubectl_works_and_shows_why_exec_does_not(proxy: ProxyProcess, tmp_path: Path) -> None:
    path = "/api/v1/namespaces/default/pods/p"
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running"},
    }
    pods = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get"]}
    documents = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]},
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
        path: pod,
    }

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        body = json.dumps(documents[request.target.partition("?")[0]]).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    proxy.api.respond = respond
    dummy = tmp_path / "dummy"
    content = yaml.safe_load(dummy_kubeconfig(parse_kubeconfig(proxy.kubeconfig(TOKEN)), str(proxy.ca_file)))
    # Go takes no proxy from the environment for addresses of this machine.
    content["clusters"][0]["cluster"]["proxy-url"] = f"http://127.0.0.1:{proxy.port}"
    dummy.write_text(yaml.safe_dump(content))
    kubectl = ("kubectl", "--kubeconfig", str(dummy))
    status, output = await proxy.run(*kubectl, "get", "--raw", path)
    assert (status, json.loads(output)) == (0, pod)
    for subcommand in (["exec", "p", "--", "true"], ["attach", "p"], ["port-forward", "p", "8080"]):
        status, output = await proxy.run(*kubectl, *subcommand)
        assert status == 1
        assert "not available from a sandbox" in output
    for extra in (
        ["--token", STOLEN],
        ["--insecure-skip-tls-verify", "--certificate-authority="],
    ):
        status, output = await proxy.run(*kubectl, "get", "--raw", path, *extra)
        assert status == 0, output
    asked = len(proxy.api.requests)
    status, output = await proxy.run(*kubectl, "get", "--raw", path, "--as", "system:admin")
    assert status == 1
    assert "impersonation (kubectl --as" in output
    assert len(proxy.api.requests) == asked
    for request in proxy.api.requests:
        assert request.values("authorization") == [f"Bearer {TOKEN}"]


def test_what_is_missing_ends_the_start_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(tmp_path / "c.json"), "--ca-dir", str(tmp_path)]
    assert main(arguments) == 1
    assert f"{tmp_path / 'c.json'} cannot be read: No such file or directory" in capsys.readouterr().err
    (tmp_path / "c.json").write_text('{"kubernetes": [{"host": "a.b", "port": 443}]}')
    assert main(arguments) == 1
    assert "no kubeconfig given: " in capsys.readouterr().err


def test_addresses_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    required = ["--config", "c", "--ca-dir", "d"]
    assert str(parse_options([*required, "--listen", "[::1]:8080"]).listen) == "[::1]:8080"
    assert str(parse_options(required).metrics_listen) == "0.0.0.0:9090"
    with pytest.raises(SystemExit):
        parse_options([*required, "--listen", "localhost:99999"])
    assert "is not host:port" in capsys.readouterr().err


async def test_it_says_which_targets_answer(proxy: ProxyProcess) -> None:
    proxy.files.respond = answer(b"HTTP/1.1 204 No Content\r\n\r\n")
    expected = {("kubernetes", ""), ("allowlist", "")}
    async with asyncio.timeout(DEADLINE_SECONDS):
        while {(it["kind"], it["problem"]) for it in await targets(proxy)} != expected:
            await asyncio.sleep(0.1)
    asked = [it for it in proxy.api.requests if it.target.endswith("/selfsubjectreviews")]
    assert {tuple(it.values("authorization")) for it in asked} == {(f"Bearer {TOKEN}",)}


async def targets(proxy: ProxyProcess) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(await proxy.fetch("/targets"))["targets"]
    return found
