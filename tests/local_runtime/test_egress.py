"""The way out of sandboxes: what they may reach, what they are given, and that nothing of it stays behind.

The namespaces are real, and so are the proxy and the TLS in them.
"""

import asyncio
import base64
import gc
import os
import stat
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography import x509
from prometheus_client import CollectorRegistry

from cli_mcp.api.instance import CliMcpInstance
from cli_mcp.authority import generate_authority
from cli_mcp.kubeconfig import DUMMY_TOKEN
from local_runtime.egress import Egress, EgressProblem, read_reach
from local_runtime.environment import SecretFiles
from local_runtime.state import StateDirectory
from tests.cred_proxy.origin import Origin, PrivateAuthority, Received
from tests.local_runtime.test_netns import listening, sandboxed

if TYPE_CHECKING:
    from cred_proxy.audit import AuditRecord

TOKEN = "real-token"
AUTHORITY = PrivateAuthority()


def instance(*targets: dict[str, Any], **proxy: Any) -> CliMcpInstance:
    spec = {"proxy": {"targets": list(targets), **proxy}} if targets else {}
    return CliMcpInstance.model_validate(
        {
            "apiVersion": "cli-mcp.redhat.com/v1alpha1",
            "kind": "CliMcpInstance",
            "metadata": {"name": "test"},
            "spec": spec,
        }
    )


def allow(*domains: str) -> dict[str, Any]:
    return {"type": "allowlist", "domains": list(domains)}


KUBERNETES = {"type": "kubernetes"}


def kubeconfig(token: str = TOKEN, server: str = "https://api.test:6443", **user: Any) -> str:
    ca = base64.b64encode(AUTHORITY.pem.encode()).decode()
    cluster = {"server": server, "certificate-authority-data": ca}
    return yaml.safe_dump(
        {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user or {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
    )


@pytest.fixture
def secrets(tmp_path: Path) -> SecretFiles:
    (tmp_path / "secrets" / "cli-mcp-test-kubeconfig").mkdir(parents=True)
    return SecretFiles(tmp_path / "secrets")


def write_kubeconfig(secrets: SecretFiles, text: str) -> None:
    assert secrets.directory is not None
    path = secrets.directory / "cli-mcp-test-kubeconfig" / "kubeconfig"
    path.with_name("new").write_text(text)
    path.with_name("new").rename(path)


def test_without_a_proxy_nothing_is_reached(secrets: SecretFiles) -> None:
    assert read_reach(instance(), secrets).config.reach() == ()


def test_what_is_reached_is_described_with_ports_and_paths(secrets: SecretFiles) -> None:
    write_kubeconfig(secrets, kubeconfig(server="https://Rancher.test/k8s/clusters/c-1/"))
    reach = read_reach(instance(KUBERNETES, allow("pypi.org", "[::1]:8443")), secrets)
    assert reach.config.reach() == (
        "rancher.test:443/k8s/clusters/c-1 (Kubernetes; the credential is put in)",
        "pypi.org:443",
        "[::1]:8443",
    )


@pytest.mark.parametrize(
    ("targets", "text", "says"),
    [
        ([KUBERNETES], None, "needs a kubeconfig: put it into {place}$"),
        ([KUBERNETES], "a: [", "{place} is not valid YAML$"),
        ([KUBERNETES], "\0", "{place} cannot be used: it contains a NUL byte"),
        ([KUBERNETES], "x" * (1 << 20) + "y", "{place} cannot be used: it is larger than 1048576 bytes"),
        ([KUBERNETES], "{}", "{place} has no context that the proxy can serve: it has no contexts"),
        (
            [KUBERNETES],
            kubeconfig(exec={"command": "aws"}),
            'no context .*: user "u": `exec`.*ServiceAccount',
        ),
        ([KUBERNETES, allow("api.test:6443")], kubeconfig(), "spec.proxy: .*both name api.test:6443"),
    ],
    ids=["missing", "no YAML", "NUL", "too large", "empty", "nothing usable", "twice"],
)
def test_what_cannot_be_used_is_said_with_its_place(
    secrets: SecretFiles, targets: list[dict[str, Any]], text: str | None, says: str
) -> None:
    if text is not None:
        write_kubeconfig(secrets, text)
    place = f"{secrets.directory}/cli-mcp-test-kubeconfig/kubeconfig"
    with pytest.raises(EgressProblem, match=says.format(place=place)):
        read_reach(instance(*targets), secrets)


def test_a_kubeconfig_that_is_a_link_is_not_read(secrets: SecretFiles, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(kubeconfig())
    assert secrets.directory is not None
    (secrets.directory / "cli-mcp-test-kubeconfig" / "kubeconfig").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EgressProblem, match="cannot be used: Too many levels of symbolic links"):
        read_reach(instance(KUBERNETES), secrets)


# --- with the proxy ---------------------------------------------------------------------------------------


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[Origin]:
    origin = Origin("127.0.0.1")
    await origin.start(AUTHORITY.server_context(origin.host, tmp_path))
    yield origin
    await origin.stop()


class Fixture:
    """An Egress that reaches `origin`, as a Kubernetes API when it has a kubeconfig."""

    def __init__(self, root: Path, secrets: SecretFiles, *targets: dict[str, Any]) -> None:
        self.records: list[AuditRecord] = []
        self.state = StateDirectory.open(root / "state")
        self.egress = Egress(
            instance(*targets, upstream={"caBundle": AUTHORITY.pem}),
            secrets,
            self.state,
            audit=self.records.append,
            registry=CollectorRegistry(),
        )

    async def close(self) -> None:
        await self.egress.close()
        self.state.close()


@pytest.fixture
async def make(tmp_path: Path, secrets: SecretFiles) -> AsyncIterator[Callable[..., Fixture]]:
    made: list[Fixture] = []

    def start(*targets: dict[str, Any]) -> Fixture:
        made.append(Fixture(tmp_path, secrets, *targets))
        return made[-1]

    yield start
    for fixture in made:
        await fixture.close()


def descriptors() -> list[str]:
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(link) for link in links if os.path.lexists(link))


def curl(origin: Origin, path: str, ca: Path, *options: str) -> str:
    proxy = "http://127.0.0.1:3128"
    command = f"curl -sS --max-time 20 --noproxy '' -x {proxy} --cacert {ca} {' '.join(options)}"
    return f"{command} https://{origin.endpoint}{path}"


ONCE_IT_LISTENS = "until exec 3<>/dev/tcp/127.0.0.1/3128; do sleep 0.02; done 2>/dev/null; exec 3>&-; "


async def test_a_request_is_recorded_under_the_name_of_its_listener(
    make: Callable[..., Fixture], origin: Origin
) -> None:
    fixture = make(allow(origin.endpoint))
    ca = fixture.state.system / "ca.crt"
    scripts = [ONCE_IT_LISTENS + curl(origin, f"/{name}", ca) for name in ("a", "b")]
    with sandboxed(scripts[0]) as (a, a_pid, a_inode), sandboxed(scripts[1]) as (b, b_pid, b_inode):
        gateways = [fixture.egress.gateway(), fixture.egress.gateway()]
        gateways[0].assign("session-a")  # before it listens, and after
        await gateways[0].open(a_pid, a_inode)
        await gateways[1].open(b_pid, b_inode)
        gateways[1].assign("session-b")
        for process in (a, b):
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.read) == b"ok"
    served = sorted((record.client, record.path) for record in fixture.records if record.event == "request")
    assert served == [("session-a", "/a"), ("session-b", "/b")]


async def test_two_hundred_sandboxes_leave_nothing_behind(
    make: Callable[..., Fixture], origin: Origin
) -> None:
    fixture = make(allow(origin.endpoint))
    with sandboxed("sleep 300") as (_, pid, inode):
        gateway = fixture.egress.gateway()
        await gateway.open(pid, inode)
        await gateway.close()
        await asyncio.sleep(0.1)
        gc.collect()
        before, tasks = descriptors(), len(asyncio.all_tasks())
        objects = len(gc.get_objects())
        for number in range(200):
            gateway = fixture.egress.gateway()
            await gateway.open(pid, inode)
            gateway.assign(f"session-{number}")
            if number % 2:
                await gateway.open(pid, inode)  # the sandbox was restarted
            await gateway.close()
            await gateway.close()
        await asyncio.sleep(0.1)
        gc.collect()
        assert descriptors() == before
        assert len(asyncio.all_tasks()) == tasks
        grown = len(gc.get_objects()) - objects
        assert grown < 1000


async def test_closing_ends_requests_that_run(make: Callable[..., Fixture], origin: Origin) -> None:
    begun = asyncio.Event()

    async def never_ends(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        begun.set()
        await asyncio.sleep(300)

    origin.respond = never_ends
    fixture = make(allow(origin.endpoint))
    script = ONCE_IT_LISTENS + curl(origin, "/", fixture.state.system / "ca.crt", "-N")
    with sandboxed(f"{script} 2>&1; echo status $?") as (process, pid, inode):
        gateway = fixture.egress.gateway()
        await gateway.open(pid, inode)
        async with asyncio.timeout(20):
            await begun.wait()
            await gateway.close()
            assert process.stdout is not None
            said = await asyncio.to_thread(process.stdout.read)
            assert b"status 0" not in said, said
            while not fixture.records:
                await asyncio.sleep(0.01)
        (served,) = [record for record in fixture.records if record.event == "request"]
        assert (served.status, served.reason) == (200, "client-gone")


async def test_nothing_listens_in_a_sandbox_whose_gateway_was_closed(
    make: Callable[..., Fixture], origin: Origin
) -> None:
    fixture = make(allow(origin.endpoint))
    with sandboxed("sleep 300") as (_, pid, inode):
        gateway = fixture.egress.gateway()
        await gateway.open(pid, inode)
        assert listening(pid)
        await gateway.close()
        await until(lambda: not listening(pid))  # the helper's child closes its copy a moment later


# --- what sandboxes are given -----------------------------------------------------------------------------


async def test_a_sandbox_gets_a_certificate_and_a_kubeconfig_without_secrets(
    make: Callable[..., Fixture], secrets: SecretFiles
) -> None:
    write_kubeconfig(secrets, kubeconfig())
    fixture = make(KUBERNETES, allow("localhost:8443"))
    given = fixture.egress.read_only
    dummy = yaml.safe_load((given["/config"] / "kubeconfig").read_text())
    assert dummy["users"] == [{"name": "u", "user": {"token": DUMMY_TOKEN}}]
    assert dummy["clusters"][0]["cluster"] == {
        "server": "https://api.test:6443",
        "certificate-authority": "/etc/cli-mcp/proxy-ca/ca.crt",
        "proxy-url": "http://127.0.0.1:3128",
    }
    for path in given.values():
        for file in [path] if path.is_file() else list(path.iterdir()):
            assert TOKEN not in file.read_text() and "PRIVATE" not in file.read_text()
            assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert (
        fixture.egress.environment["NO_PROXY"] == "sandbox,127.0.0.1,127.0.0.0/8,0.0.0.0,::1"
    )  # localhost is a target
    keys = fixture.state.proxy_ca
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert stat.S_IMODE((keys / "ca.key").stat().st_mode) == 0o600


async def test_the_authority_is_kept_until_shortly_before_it_expires(
    secrets: SecretFiles, tmp_path: Path
) -> None:
    first = Fixture(tmp_path, secrets)
    await first.close()
    kept = (first.state.proxy_ca / "ca.crt").read_text()
    again = Fixture(tmp_path, secrets)
    await again.close()
    assert (again.state.proxy_ca / "ca.crt").read_text() == kept
    certificate, key = generate_authority("old", datetime.now(UTC) - timedelta(days=340))
    for name, text in (("ca.crt", certificate), ("ca.key", key)):
        (again.state.proxy_ca / name).write_text(text)
    (again.state.proxy_ca / "ca.key").chmod(0o644)
    renewed = Fixture(tmp_path, secrets)
    await renewed.close()
    pem = (renewed.state.proxy_ca / "ca.crt").read_bytes()
    lasts = x509.load_pem_x509_certificate(pem).not_valid_after_utc - datetime.now(UTC)
    assert lasts > timedelta(days=300)
    assert stat.S_IMODE((renewed.state.proxy_ca / "ca.key").stat().st_mode) == 0o600


# --- changes ----------------------------------------------------------------------------------------------


@pytest.fixture
def fast_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cred_proxy.reload._POLL_SECONDS", 0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("fast_reload")
async def test_a_new_kubeconfig_replaces_the_old_one_whole(
    make: Callable[..., Fixture], secrets: SecretFiles, caplog: pytest.LogCaptureFixture
) -> None:
    write_kubeconfig(secrets, kubeconfig())
    fixture = make(KUBERNETES)
    shown = fixture.egress.read_only["/config"] / "kubeconfig"
    with shown.open() as as_it_was:
        new = yaml.safe_load(kubeconfig(server="https://other.test"))
        new["users"].append({"name": "cert", "user": {"client-certificate": "/x"}})
        write_kubeconfig(secrets, yaml.safe_dump(new))
        await until(lambda: "other.test" in shown.read_text())
        assert "api.test" in as_it_was.read()  # another file, not this one with another content
    assert fixture.egress.reach.config.reach() == ("other.test:443 (Kubernetes; the credential is put in)",)
    assert 'user "cert": `client-certificate`' in caplog.text
    assert fixture.egress.problem() is None


@pytest.mark.usefixtures("fast_reload")
@pytest.mark.parametrize("broken", ["garbage", "removed", "unwritable"])
async def test_what_is_broken_is_said_until_it_is_mended(
    make: Callable[..., Fixture],
    secrets: SecretFiles,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    write_kubeconfig(secrets, kubeconfig())
    fixture = make(KUBERNETES)
    reach, shown = fixture.egress.reach, fixture.egress.read_only["/config"]
    assert secrets.directory is not None
    match broken:
        case "garbage":
            write_kubeconfig(secrets, f"token: [{TOKEN}")
        case "removed":
            (secrets.directory / "cli-mcp-test-kubeconfig" / "kubeconfig").unlink()
        case "unwritable":
            (shown / "kubeconfig").unlink()
            shown.rmdir()
            write_kubeconfig(secrets, kubeconfig(token="other"))
    await until(lambda: fixture.egress.problem() is not None)
    assert "kubeconfig" in str(fixture.egress.problem())
    assert TOKEN not in str(fixture.egress.problem()) + caplog.text
    assert fixture.egress.reach is reach
    shown.mkdir(exist_ok=True)
    write_kubeconfig(secrets, kubeconfig(token="mended"))
    await until(lambda: fixture.egress.problem() is None)
    assert caplog.text.count("stays as it was") == 1
