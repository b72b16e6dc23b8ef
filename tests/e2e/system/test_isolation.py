"""What a sandbox reaches, beside what other pods reach: its own proxy, and DNS if the instance says so."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from tests.e2e import outside
from tests.e2e.instances import Instance
from tests.e2e.node import Nodes, nodes
from tests.e2e.operator import kubectl, objects
from tests.e2e.outside import NEEDS_OUTSIDE
from tests.e2e.probes import ECHO, Target, in_pod, reached
from tests.hooks.world import ALLOWLIST
from tests.ssh_gateway.harness import KEY, public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.operator import Object
    from tests.e2e.probes import RunPython

SESSION = "s1"
# A new pod is open for a moment on some network plugins.
POLICY_LAG_SECONDS = 2
STRAY_PORT, KUBELET_PORT = 7777, 10250
# Of DNS pods on OpenShift; 53 is not for everybody to listen on.
DNS_PORT = 5353
# A program that takes no notice of variables reaches no more than one that does.
WITHOUT_PROXY = "unset HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy"
DNS = {"none": set(), "cluster": {"cluster DNS over TCP", "cluster DNS over UDP"}}


@pytest.fixture(scope="module")
def instances(instance: Instance) -> dict[str, Instance]:
    """By spec.sandbox.dns, in one namespace: the first has an SSH gateway, too."""
    second = Instance(instance.namespace, name="second", folder=instance.folder)
    instance.make_secret("agents", {"authorized_keys": public(KEY)})
    route = {"usernamePattern": "^agent-[a-z]+$", "authorizedKeysSecret": "agents"}
    pool: Object = {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST}
    instance.create({**pool, "ssh": {"routes": [route], "service": {"type": "NodePort"}}})
    second.create({"sandbox": {"warmPoolSize": 1, "dns": "cluster"}, "proxy": ALLOWLIST})
    for made in (instance, second):
        made.wait_for("Ready", 90)
        made.client().bash(SESSION, "true")
    return {"none": instance, "cluster": second}


@pytest.fixture(scope="module", params=["none", "cluster"])
def dns(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def sandbox(instances: dict[str, Instance], dns: str) -> RunPython:
    """Programs in a session of the instance with that DNS."""
    client = instances[dns].client()

    def run(program: str, argument: str) -> str:
        script = f"{WITHOUT_PROXY}; python3 -c {shlex.quote(program)} {shlex.quote(argument)}"
        answer = client.bash(SESSION, f"({script})")
        assert answer.exit_code == 0, answer.text
        return answer.stdout

    return run


@pytest.fixture(scope="module")
def stray(instances: dict[str, Instance]) -> RunPython:
    """Programs in any other pod of the namespace, in which something listens as well."""
    instance = instances["none"]
    for name in ("stray", "listener"):
        instance.make_stray_pod(name)
    listen = f"nohup python3 -c {shlex.quote(ECHO)} {STRAY_PORT} {DNS_PORT} >/dev/null 2>&1 &"
    kubectl("-n", instance.namespace, "exec", "listener", "--", "bash", "-c", listen)
    time.sleep(POLICY_LAG_SECONDS)
    assert instance.connects("listener", "127.0.0.1", STRAY_PORT)
    return in_pod(instance.namespace, "stray")


@pytest.fixture(scope="module")
def all_nodes(instances: dict[str, Instance]) -> Iterator[Nodes]:
    with nodes() as made:
        yield made


def address(namespace: str, pod: str) -> str:
    return str(kubectl("-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.podIP}"))


def cluster_ip(namespace: str, service: str) -> str:
    return str(kubectl("-n", namespace, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}"))


def only_ip(instance: Instance, component: str) -> str:
    return str(instance.component(component)[0]["status"]["podIP"])


def session_pod(instance: Instance) -> Object:
    (pod,) = instance.session_pods(SESSION)
    return pod


def probed_port(pod: Object) -> int:
    """That the kubelet asks whether the first container is ready."""
    container = pod["spec"]["containers"][0]
    port = container["readinessProbe"]["httpGet"]["port"]
    named_ports = {it.get("name"): it["containerPort"] for it in container["ports"]}
    return int(named_ports.get(port, port))


def api_server() -> tuple[str, int]:
    """The address behind the Service."""
    (endpoints,) = objects("default", "endpointslices", "kubernetes.io/service-name=kubernetes")
    return endpoints["endpoints"][0]["addresses"][0], endpoints["ports"][0]["port"]


def open_to_pods(instances: dict[str, Instance]) -> list[Target]:
    """What every pod without a policy of its own reaches."""
    demo, second = instances["none"], instances["cluster"]
    namespace, dns_service = demo.namespace, cluster_ip("kube-system", "kube-dns")
    (dns_pod, *_) = objects("kube-system", "pods", "k8s-app=kube-dns")
    node = dns_pod["status"]["hostIP"]
    listener, gateway = address(namespace, "listener"), demo.child("service", "cli-mcp-demo-ssh")
    return [
        Target("the API server", *api_server()),
        Target("the API server's Service", cluster_ip("default", "kubernetes"), 443),
        Target("the kubelet", node, KUBELET_PORT),
        Target("a node port", node, gateway["spec"]["ports"][0]["nodePort"]),
        Target("the SSH gateway", only_ip(demo, "ssh"), names.SSH_PORT),
        Target("the SSH gateway's Service", gateway["spec"]["clusterIP"], 22),
        Target("another pod", listener, STRAY_PORT),
        Target("another pod over UDP", listener, STRAY_PORT, "udp"),
        Target("a DNS server of somebody's over UDP", listener, DNS_PORT, "udp"),
        Target("a DNS server of somebody's over TCP", listener, DNS_PORT),
        Target("cluster DNS over UDP", dns_service, 53, "udp"),
        Target("cluster DNS over TCP", dns_service, 53),
        Target("another port of cluster DNS", dns_pod["status"]["podIP"], probed_port(dns_pod)),
        *(
            Target(f"{what} of {it.name}", host, port)
            for it in (demo, second)
            for what, host, port in (
                ("the MCP server", only_ip(it, "server"), names.SERVER_PORT),
                ("the MCP server's Service", cluster_ip(namespace, f"cli-mcp-{it.name}"), names.SERVER_PORT),
                ("metrics of the proxy", only_ip(it, "proxy"), names.PROXY_METRICS_PORT),
            )
        ),
    ]


def closed_to_pods(instances: dict[str, Instance]) -> dict[Target, str]:
    """What only the instance's own components reach, and the node's kubelet; with the name of that node."""
    return {
        Target(f"{what} of {it.name}", pod["status"]["podIP"], port): pod["spec"]["nodeName"]
        for it in instances.values()
        for what, pod, port in (
            ("the proxy", it.component("proxy")[0], names.PROXY_PORT),
            ("the agent of a session", session_pod(it), names.AGENT_PORT),
        )
    }


def named(targets: list[Target]) -> set[str]:
    return {it.name for it in targets}


def test_a_sandbox_reaches_nothing_of_what_is_open_to_other_pods_but_dns_where_it_is_asked_for(
    instances: dict[str, Instance], dns: str, sandbox: RunPython, stray: RunPython
) -> None:
    targets = open_to_pods(instances)
    assert reached(stray, targets) == named(targets), "the positive control"
    assert reached(sandbox, targets) == DNS[dns]


def test_agents_and_proxies_are_open_to_their_own_instance_alone(
    instances: dict[str, Instance], dns: str, sandbox: RunPython, stray: RunPython, all_nodes: Nodes
) -> None:
    node_of = closed_to_pods(instances)
    targets = list(node_of)
    for node in set(node_of.values()):
        its = [it for it in targets if node_of[it] == node]
        assert reached(all_nodes.python(node), its) == named(its), "the positive control"
    assert reached(stray, targets) == set()
    own = instances[dns].name
    # A pod reaches itself whatever the policies say: the agent asks for a signature there, too.
    assert reached(sandbox, targets) == {f"the proxy of {own}", f"the agent of a session of {own}"}


@NEEDS_OUTSIDE
def test_neither_the_metadata_of_the_node_nor_the_internet_is_reached(
    sandbox: RunPython, stray: RunPython
) -> None:
    host = outside.address()
    with outside.metadata_service(), outside.running("python3", "-c", ECHO, str(DNS_PORT), port=DNS_PORT):
        targets = [
            Target("metadata", outside.METADATA_ADDRESS, 80),
            Target("a host outside", host, DNS_PORT),
            Target("a host outside over UDP", host, DNS_PORT, "udp"),
        ]
        assert reached(stray, targets) == named(targets), "the positive control"
        assert reached(sandbox, targets) == set()


def test_names_are_known_to_a_sandbox_only_with_cluster_dns(
    instances: dict[str, Instance], dns: str, stray: RunPython
) -> None:
    lookup = "import socket, sys; print(len(socket.gethostbyname_ex(sys.argv[1])[2]))"
    name = "kubernetes.default.svc.cluster.local"
    assert stray(lookup, name) == "1\n", "the positive control"
    answer = instances[dns].client().bash(SESSION, f"getent hosts {name} >/dev/null && echo known")
    assert answer.stdout == ("known\n" if dns == "cluster" else "")


def test_ipv6_leads_nowhere(instances: dict[str, Instance], sandbox: RunPython, stray: RunPython) -> None:
    namespace = instances["none"].namespace
    own = "[line.split()[0] for line in open('/proc/net/if_inet6') if line.split()[5] == 'eth0']"
    digits = in_pod(namespace, "listener")(f"print(*{own})", "")
    if not digits.strip():
        pytest.skip("pods have no IPv6")
    grouped = ":".join(digits.split()[0][at : at + 4] for at in range(0, 32, 4))
    targets = [
        Target("another pod", f"{grouped}%eth0", STRAY_PORT),
        Target("another pod over UDP", f"{grouped}%eth0", STRAY_PORT, "udp"),
    ]
    assert reached(in_pod(namespace, "listener"), targets) == named(targets), "the positive control"
    assert reached(sandbox, targets) == set()


@pytest.mark.parametrize("family", ["AF_INET6", "AF_VSOCK"])
def test_sockets_that_policies_may_not_cover_cannot_be_made(
    instances: dict[str, Instance], sandbox: RunPython, family: str
) -> None:
    """Many plugins filter IPv4 alone, and AF_VSOCK, which leads to the hypervisor, none does."""
    addresses = session_pod(instances["none"])["status"]["podIPs"]
    if family == "AF_INET6" and any(":" in it["ip"] for it in addresses):
        pytest.skip("pods have IPv6")
    code = (
        "import errno, socket, sys\n"
        "try:\n  socket.socket(getattr(socket, sys.argv[1])).close(); print('made')\n"
        "except OSError as error:\n  print(errno.errorcode[error.errno])"
    )
    assert sandbox(code, "AF_INET") == "made\n", "the positive control"
    assert sandbox(code, family) == "EAFNOSUPPORT\n"


@pytest.mark.parametrize(
    "kind",
    ["RAW, IPPROTO_ICMP", "RAW, IPPROTO_RAW", "RAW, IPPROTO_TCP", "DGRAM, IPPROTO_ICMP"],
)
def test_packets_cannot_be_made_by_hand(
    instances: dict[str, Instance], sandbox: RunPython, all_nodes: Nodes, kind: str
) -> None:
    """Which would go round the policies of network plugins that know TCP, UDP and SCTP alone."""
    code = (
        "from socket import *\nimport sys\n"
        f"try:\n  with socket(AF_INET, SOCK_{kind}) as s:\n"
        "    s.settimeout(3); s.connect((sys.argv[1], 0)); s.send(bytes([8, 0, 247, 255, 0, 0, 0, 0]))\n"
        "    print('answered' if s.recv(1) else '')\n"
        "except OSError as error:\n  print(type(error).__name__)"
    )
    namespace = instances["none"].namespace
    listener = address(namespace, "listener")
    if "ICMP" in kind:
        node = kubectl("-n", namespace, "get", "pod", "listener", "-o", "jsonpath={.spec.nodeName}")
        assert all_nodes.python(node)(code, listener) in ("answered\n", "PermissionError\n")
    assert sandbox(code, listener) == "PermissionError\n"


def test_the_metrics_that_are_open_to_everybody_name_nobody_and_nothing(
    instances: dict[str, Instance], stray: RunPython
) -> None:
    demo = instances["none"]
    demo.client().bash(SESSION, "curl -s https://pypi.org/secret-path; curl -s https://not-listed.test")
    fetch = (
        "import sys, urllib.request\n"
        "for path in ('metrics', 'health', '', 'debug', 'config', '../etc/passwd'):\n"
        "  try: print(path, urllib.request.urlopen(sys.argv[1] + path, timeout=5).read().decode())\n"
        "  except urllib.error.HTTPError as error: print(path, error.code, error.read().decode())"
    )
    shown = stray(fetch, f"http://{only_ip(demo, 'proxy')}:{names.PROXY_METRICS_PORT}/")
    assert "# TYPE" in shown, "the positive control"
    hidden = [
        "secret-path",
        "not-listed",
        session_pod(demo)["status"]["podIP"],
        SESSION,
        demo.namespace,
        "Bearer",
        "root:",
    ]
    assert [it for it in hidden if it in shown] == []
