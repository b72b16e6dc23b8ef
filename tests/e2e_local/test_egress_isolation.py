"""Every way round the proxy fails, and nothing in a sandbox is worth stealing."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e_local.conftest import USERS
from tests.e2e_local.origins import TOKEN, World, kubectl_of_host, world

SESSION = "a"
PYTHON = "/usr/bin/python3"
needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"the sandbox has no {PYTHON}")
# Reachable from any host without DNS: link-local metadata, public resolvers, multicast, broadcast.
FOREIGN = ("169.254.169.254", "1.1.1.1", "224.0.0.1", "255.255.255.255")


@pytest.fixture(scope="module", params=USERS)
def reach(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(unprivileged=request.param == "user", direct=True) as made:
        yield made


class HostService:
    """A server on every address of this host, which counts who connects."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.connections += 1
            connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(scope="module")
def host_service() -> Iterator[HostService]:
    with closing(HostService()) as service:
        with socket.create_connection(("127.0.0.1", service.port)):
            pass
        while not service.connections:
            pass
        service.connections = 0
        yield service


def host_addresses() -> list[str]:
    """Of this host, on loopback and on its network; the latter by where a packet would be sent from."""
    addresses = ["127.0.0.1", "127.0.0.2", "::1"]
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
            except OSError:
                continue  # no network of that kind
            addresses.append(probe.getsockname()[0])
    return addresses


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def test_listed_servers_on_the_loopback_of_this_host_are_reached(reach: World) -> None:
    for endpoint, origin in reach.direct.items():
        before = len(origin.requests)
        answer = reach.server.call(SESSION, f"curl -sS -H 'Authorization: x' https://{endpoint}/path")
        assert answer.stdout == "ok", answer.text
        (request,) = origin.requests[before:]
        assert request.line == "GET /path HTTP/1.1"
        assert request.values("authorization") == []


def test_kubectl_reaches_a_cluster_on_the_loopback_of_this_host(reach: World) -> None:
    """Such as one of kind's, for which Go's HTTP client would not ask a proxy of the environment."""
    reach.install("kind", "kubectl", kubectl_of_host())
    answer = reach.server.call("kind", "kubectl get namespaces -o name")
    assert "namespace/default" in answer.stdout, answer.text
    assert reach.api.requests[-1].values("authorization") == [f"Bearer {TOKEN}"]


def test_without_the_proxy_nothing_of_this_host_can_be_reached(
    reach: World, host_service: HostService
) -> None:
    before = {endpoint: origin.connections for endpoint, origin in reach.direct.items()}
    targets = [
        *(f"https://{endpoint}/" for endpoint in reach.direct),
        *(f"http://{bracketed(address)}:{host_service.port}/" for address in host_addresses()),
        *(f"{reach.server.url}", f"http://{bracketed('::ffff:127.0.0.1')}:{host_service.port}/"),
        *(f"http://{address}/" for address in FOREIGN),
    ]
    clear = "unset ${!http*} ${!HTTP*} ${!https*} ${!HTTPS*} ALL_PROXY NO_PROXY no_proxy"
    lines = [f"curl -sSk --max-time 5 --noproxy '*' {target} && echo REACHED {target}" for target in targets]
    answer = reach.server.call(SESSION, "({})".format("\n".join([clear, *lines])))
    assert "REACHED" not in answer.text
    assert answer.text.count("curl: (7)") == len(targets), answer.text
    assert host_service.connections == 0
    assert {endpoint: origin.connections for endpoint, origin in reach.direct.items()} == before


def test_no_name_is_resolved_in_a_sandbox(reach: World) -> None:
    answer = reach.server.call(
        SESSION,
        "for name in example.com $(hostname).local api.test; do getent hosts $name && echo found; done",
    )
    assert "found" not in answer.text
    assert reach.server.call(SESSION, "getent hosts localhost").stdout.split()[0] in ("127.0.0.1", "::1")


@needs_python
@pytest.mark.parametrize(
    "attempt",
    [
        "socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)",
        "socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6)",
        "socket(AF_INET, SOCK_RAW, 255)",
        "socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP).sendto(b'\\x08' + bytes(7), ('{address}', 0))",
        "socket(AF_INET, SOCK_DGRAM).sendto(b'x', ('{address}', 53))",
        "socket(AF_INET, SOCK_DGRAM).sendto(b'x', ('169.254.169.254', 80))",
        "socket(AF_INET6, SOCK_DGRAM).sendto(b'x', ('2001:4860:4860::8888', 53))",
        "socket(AF_INET, SOCK_STREAM, 132).connect(('{address}', 80))",  # SCTP
    ],
)
def test_packets_of_other_kinds_do_not_leave_either(reach: World, attempt: str) -> None:
    address = host_addresses()[-1] if ":" not in host_addresses()[-1] else "192.0.2.1"
    code = f"from socket import *; {attempt.format(address=address)}; print('SENT')"
    answer = reach.server.call(SESSION, f'{PYTHON} -c "{code}"')
    assert answer.is_error
    assert "SENT" not in answer.text


def connect(target: str) -> str:
    """A bash command that asks the proxy for a tunnel and shows the status line, and no client's own idea of
    what may be asked."""
    return (
        f"exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT %s HTTP/1.1\\r\\n\\r\\n' '{target}' >&3; "
        "timeout 5 head -n1 <&3; exec 3>&-"
    )


def test_the_proxy_grants_no_other_spelling_port_or_address(reach: World, host_service: HostService) -> None:
    listed = next(endpoint for endpoint in reach.direct if endpoint.startswith("localhost"))
    port = int(listed.rpartition(":")[2])
    own_port = reach.server.url.split(":")[2].partition("/")[0]
    mapped, own = "[::ffff:127.0.0.1]", f"127.0.0.1:{own_port}"
    refused = [
        *(f"{bracketed(address)}:{host_service.port}" for address in host_addresses()),
        *(f"{host}:{port}" for host in ("127.0.0.1", "127.1", "0", "2130706433", "0x7f000001", mapped)),
        *(f"{host}:{port}" for host in ("0.0.0.0", "[::]", "[::1]", "127.0.0.2", "localhost.", "LOCALHOST.")),
        *(f"{host}:3128" for host in ("127.0.0.1", "localhost", "[::1]")),
        *(f"{host}:{own_port}" for host in ("localhost", "[::1]")),
        *(
            f"localhost:{other}"
            for other in (22, 80, 443, port + 1, f"0{port}", f"{port}@evil", 65536 + port)
        ),
        *(f"{address}:{number}" for address in FOREIGN for number in (80, 443)),
        *("[fe80::1]:80", "[fd00:ec2::254]:80", "metadata.google.internal:80", "kubernetes.default.svc:443"),
        *(own, f"evil@localhost:{port}", f"localhost:{port}#@evil:443", "api.test.evil.test:443"),
    ]
    before = {endpoint: origin.connections for endpoint, origin in reach.direct.items()}
    answer = reach.server.call(SESSION, "\n".join(map(connect, refused)))
    statuses = [line.split()[1] for line in answer.stdout.splitlines()]
    assert len(statuses) == len(refused), answer.text
    granted = [
        target for target, status in zip(refused, statuses, strict=True) if status not in ("400", "403")
    ]
    assert granted == []
    assert host_service.connections == 0
    assert {endpoint: origin.connections for endpoint, origin in reach.direct.items()} == before
    recorded = [line for line in reach.audit() if line["event"] == "connect"][-len(refused) :]
    shown = [target.partition("#")[0].rpartition("@")[2] for target in refused]
    assert [line["target"] for line in recorded] == shown
    assert {line["client"] for line in recorded} == {SESSION}
    assert {line["reason"] for line in recorded} <= {"domain-not-allowed", "bad-connect"}


def test_a_tunnel_leads_to_its_target_alone(reach: World) -> None:
    """Another host in the request, and redirects, change nothing."""
    localhost, other = list(reach.direct)[:2]
    before = reach.direct[other].connections
    answer = reach.server.call(SESSION, f"curl -sS -H 'Host: {other}' https://{localhost}/")
    assert "host differs from CONNECT" in answer.stdout
    assert reach.direct[other].connections == before


@needs_python
def test_a_session_cannot_reach_what_another_listens_on(reach: World) -> None:
    serve = "import socket; socket.create_server(('127.0.0.1', 9999)).accept()"
    connect_to_itself = "until exec 3<>/dev/tcp/127.0.0.1/9999; do sleep 0.05; done 2>/dev/null"
    assert not reach.server.call("other", f'{PYTHON} -c "{serve}" & {connect_to_itself}').is_error
    assert reach.server.call(SESSION, "exec 3<>/dev/tcp/127.0.0.1/9999").is_error


@needs_python
def test_a_sandbox_can_take_the_port_from_nobody_but_itself(reach: World) -> None:
    code = (
        "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
        "s.bind(('127.0.0.1', 3128)); s.listen()"
    )
    assert "Address already in use" in reach.server.call(SESSION, f'{PYTHON} -c "{code}"').text


def test_nothing_that_can_be_read_holds_a_secret(reach: World) -> None:
    """The credential, the key of the authority, the token of the server: not in the environment, not in any
    file, not in what the kernel shows of processes."""
    key = (reach.server.state / "proxy-ca/ca.key").read_text().splitlines()[1]
    reach.server.call(SESSION, f"curl -sS {reach.api_url}/api")  # the proxy has had it in its hands
    assert reach.api.requests[-1].values("authorization") == [f"Bearer {TOKEN}"]
    secrets = [TOKEN, key, "PRIVATE KEY", reach.server.token, "swordfish"]
    patterns = reach.workspace(SESSION) / "patterns"  # to be found too, so that the search is seen to work
    patterns.write_text("\n".join(secrets))
    patterns.chmod(0o644)
    search = (
        'search() { grep -lsF -D skip -f /workspace/patterns "$@"; };'
        "search -r --exclude-dir=usr --exclude-dir=proc /;"
        "for process in /proc/[0-9]*; do search $process/{environ,cmdline,maps,mountinfo,net/unix}; done;"
        "env | search --label=environment -; echo done"
    )
    answer = reach.server.call(SESSION, search)
    patterns.unlink()
    assert answer.stdout == "/workspace/patterns\ndone\n"


def test_the_files_of_the_proxy_cannot_be_changed(reach: World) -> None:
    for path in ("/config/kubeconfig", "/etc/cli-mcp/proxy-ca/ca.crt", "/etc/ssl/certs/ca-certificates.crt"):
        if reach.server.call(SESSION, f"test -e {path}").is_error:
            continue
        for change in ("echo x >>", "rm -f", "mv -t /tmp", "chmod 777", "ln -sf /tmp/x"):
            assert reach.server.call(SESSION, f"{change} {path}").is_error
    assert os.stat(reach.server.state / "system/config/kubeconfig").st_mode & 0o777 == 0o644
