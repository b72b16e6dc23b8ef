"""What a model may try in its own pod: against the agent, the limits of the pod, and for the credential."""

from __future__ import annotations

import base64
import itertools
import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from cli_mcp import names
from tests.e2e.operator import eventually, kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient
    from tests.e2e_local.harness import Answer

# The investigator may open every channel; the proxy does not.
RULES = (
    {"apiGroups": [""], "resources": ["pods", "configmaps", "services"], "verbs": ["get", "list", "create"]},
    {
        "apiGroups": [""],
        "resources": ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy"],
        "verbs": ["get", "create"],
    },
    {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
)
# The first line of what is in it; in JSON its line feed is escaped.
PRIVATE_KEY = re.compile(r"PRIVATE KEY-----(?:\n|\\n)([A-Za-z0-9+/=]{40,})")
_numbers = itertools.count(1)
LIMITS = {"memory": "160Mi", "ephemeral-storage": "64Mi"}


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create(
        {"sandbox": {"resources": {"limits": LIMITS}, "warmPoolSize": 1}, "proxy": KUBERNETES}, RULES
    )
    instance.wait_for("Ready", 120)
    return instance


@pytest.fixture(scope="module")
def client(ready: Instance) -> McpClient:
    return ready.client()


@pytest.fixture
def session(client: McpClient) -> Iterator[str]:
    """A session of the test's own; it ends with it."""
    name = f"s-{next(_numbers)}"
    yield name
    client.end(name)


def secret(instance: Instance, name: str) -> dict[str, str]:
    data = json.loads(kubectl("-n", instance.namespace, "get", "secret", name, "-o", "json"))["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


# --- the agent

AGENT_ATTACKS = {
    "signals": "for n in {1..64}; do kill -$n 1; done",
    "everybody": "kill -9 -1",
    "its memory": "cat /proc/1/mem",
    "its environment": "cat /proc/1/environ",
    "its descriptors": "ls -l /proc/1/fd",
    "its log": "echo forged >/proc/1/fd/2",
    "a debugger": "python3 -c 'import ctypes; raise SystemExit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'",
    "its state": "rm -rf /run/cli-mcp/*; ln -s /etc /run/cli-mcp/exchange; mkfifo /run/cli-mcp/shell.state",
    "its code": "echo x >/opt/cli-mcp/bin/sandbox-agent",
    "the session keys": "echo x >/etc/cli-mcp/session-keys/0000000000000000.pem",
    "its port": "python3 -c 'import socket; socket.create_server((\"\", 8090))'",
    "all connections": "for n in {1..300}; do exec {fd}<>/dev/tcp/127.0.0.1/8090; done; sleep 1",
    "all processes": "bomb() { bomb | bomb & }; bomb; sleep 3",
    "all names in its state": "for n in {1..3000}; do : >/run/cli-mcp/$n; done",
}
HARMLESS = ("everybody", "its state", "all connections", "all processes", "all names in its state", "signals")


@pytest.mark.parametrize("attack", AGENT_ATTACKS)
def test_the_agent_goes_on_whatever_is_done_to_it(
    ready: Instance, client: McpClient, session: str, attack: str
) -> None:
    client.bash(session, "KEPT=yes")
    tried = client.bash(session, AGENT_ATTACKS[attack], timeout=10)
    if attack not in HARMLESS:
        assert tried.exit_code != 0, tried.text
    client.bash(session, "kill -9 -1", timeout=20)  # what the attack has left running
    after = client.bash(session, "echo [$KEPT]", timeout=20)
    assert after.stdout == "[yes]\n", after.text
    assert ready.restarts(session) == 0


def agent(path: str, token: str = "") -> str:
    header = f"-H 'Authorization: Bearer {token}' " if token else ""
    return (
        f"curl -s --noproxy '*' -o /dev/null -w '%{{http_code}}' {header}"
        f'--json \'{{"command":"id","timeoutSeconds":5}}\' http://127.0.0.1:{names.AGENT_PORT}{path}; '
    )


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_the_agent_takes_no_order_from_its_own_pod(client: McpClient, session: str) -> None:
    parts = [
        base64.urlsafe_b64encode(json.dumps(it).encode()).decode().rstrip("=") for it in ({"alg": "none"}, {})
    ]
    attempts = [agent("/v1/run"), agent("/v1/run", f"{parts[0]}.{parts[1]}."), agent("/v1/tools/read_file")]
    assert client.bash(session, "".join(attempts)).stdout == "401" * len(attempts)


# --- the limits of the pod


def test_out_of_memory_is_said_and_the_session_goes_on(
    ready: Instance, client: McpClient, session: str
) -> None:
    client.bash(session, "KEPT=yes; echo file >/workspace/kept")
    hungry = "python3 -c 'x = []\nwhile True: x.append(bytearray(10**6))'"
    tried = client.bash(session, hungry, timeout=60)
    if restarts_eventually(ready, session):
        assert "out of memory" in tried.text
    else:
        assert tried.exit_code == 137
    assert client.bash(session, "echo $KEPT; cat /workspace/kept").stdout == "yes\nfile\n"


def restarts_eventually(instance: Instance, session: str) -> bool:
    try:
        eventually(lambda: instance.restarts(session), 3)
    except AssertionError:
        return False
    return True


def test_memory_that_files_fill_costs_no_state_of_the_shell(client: McpClient, session: str) -> None:
    """It belongs to no process, so that ending one frees nothing; the container may have to restart."""
    client.bash(session, "KEPT=yes")
    fill = "for place in /dev/shm /run/cli-mcp; do head -c 60M /dev/zero >$place/full; done; "
    client.bash(session, fill + "python3 -c 'x = bytearray(60 * 10**6)'; sleep 3", timeout=40)
    after = client.bash(session, "rm -f /dev/shm/full /run/cli-mcp/full; echo $KEPT")
    assert after.stdout == "yes\n"


def test_what_fills_the_agents_own_directory_costs_the_session_alone(client: McpClient, session: str) -> None:
    full = client.bash(session, "KEPT=yes; head -c 100M /dev/zero >/run/cli-mcp/full")
    assert "No space left on device" in full.text
    after = client.bash(session, "echo $KEPT")
    assert after.is_error
    assert "No space left on device" in after.text
    client.end(session)
    assert client.bash(session, "echo hi").stdout == "hi\n"


@pytest.mark.parametrize("place", ["/workspace", "/tmp"])
def test_a_full_disk_ends_the_session_and_says_so(client: McpClient, session: str, place: str) -> None:
    """The kubelet looks every now and then; what was written until then is bounded by time alone."""
    answers: list[Answer] = []

    def is_over() -> bool:
        answers.append(client.bash(session, f"head -c 100M /dev/zero >{place}/full; sleep 5", timeout=20))
        return answers[-1].is_error and "ended" in answers[-1].text

    eventually(is_over, 180)
    assert "Evicted" in answers[-1].text
    assert client.bash(session, f"ls {place}").structured["session"] == "new"


# --- the credential


def test_no_file_environment_or_process_of_the_pod_holds_a_credential(
    ready: Instance, client: McpClient, session: str
) -> None:
    config = yaml.safe_load(secret(ready, "cli-mcp-demo-kubeconfig")["kubeconfig"])
    token = config["users"][0]["user"]["token"]
    assert client.bash(session, "kubectl get configmaps -o name").exit_code == 0  # it is in use
    keys = [
        key
        for name in ("proxy-ca", "session-key", "tls")
        for value in secret(ready, f"cli-mcp-demo-{name}").values()
        for key in PRIVATE_KEY.findall(value)
    ]
    hidden = [
        token,
        token.rpartition(".")[2],
        base64.b64encode(token.encode()).decode()[:60],
        client.token or "",
        *keys,
    ]
    # To be found too, so that the search is seen to work; in the command they stand as hexadecimal digits.
    patterns = "\n".join(["PRIVATE KEY-----", *hidden]).encode().hex()
    search = (
        f'python3 -c \'print(bytes.fromhex("{patterns}").decode(), end="")\' >/workspace/patterns; '
        'search() { grep -lsaF -D skip -f /workspace/patterns "$@"; }; '
        "search -r --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr /; "
        "for it in /proc/[0-9]*; do search $it/{environ,cmdline,maps,mountinfo}; done; "
        "env | search --label=environment -; echo done"
    )
    answer = client.bash(session, search, timeout=120)
    assert answer.stdout == "/workspace/patterns\ndone\n", answer.text
    assert len(keys) == 3
    assert client.bash(session, "ls /var/run/secrets/kubernetes.io").exit_code != 0


WHOAMI = "kubectl auth whoami -o jsonpath='{.status.userInfo.username}'"
REVIEWS = "https://kubernetes.default.svc/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def curl(options: str) -> str:
    return f"curl -s {options} --json '{json.dumps(REVIEW)}' {REVIEWS} | jq -r .status.userInfo.username"


# {token} is a valid one of somebody else.
CLAIMS = {
    "nothing": curl(""),
    "another token": curl("-H 'Authorization: Bearer {token}'"),
    "two tokens": curl("-H 'Authorization: Bearer {token}' -H 'authorization: Bearer {token}'"),
    "a password": curl("-u admin:admin"),
    "kubectl --token": f"{WHOAMI} --token={{token}}",
    "a kubeconfig": f"sed s/proxy-managed-token/{{token}}/ $KUBECONFIG >mine; KUBECONFIG=mine {WHOAMI}",
}


# Without them the answer would be that to another question.
REFUSED_CLAIMS = {
    "another user": "-H 'Impersonate-User: admin' -H 'Impersonate-Group: system:masters'",
    "a front proxy": "-H 'X-Remote-User: admin' -H 'X-Remote-Group: system:masters'",
    "a header to drop": "-H 'Connection: Authorization, Impersonate-User' -H 'Impersonate-User: admin'",
}


@pytest.mark.parametrize("claim", REFUSED_CLAIMS)
def test_a_claim_that_would_change_the_answer_is_refused(client: McpClient, session: str, claim: str) -> None:
    command = f"curl -s -o /dev/null -w '%{{http_code}}' {REFUSED_CLAIMS[claim]} --json '{{}}' {REVIEWS}"
    assert client.bash(session, command).stdout == "403"


def test_kubectl_as_somebody_else_is_told_that_it_cannot_be(client: McpClient, session: str) -> None:
    answer = client.bash(session, "kubectl get configmaps --as=admin --as-group=system:masters")
    assert answer.exit_code == 1
    assert "mpersonat" in answer.structured["stderr"], answer.text


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_api_server_sees_the_injected_identity_whatever_the_shell_claims(
    ready: Instance, client: McpClient, session: str, claim: str
) -> None:
    other = ready.token("default")
    answer = client.bash(session, CLAIMS[claim].replace("{token}", other))
    assert answer.stdout.strip() == f"system:serviceaccount:{ready.namespace}:investigator", answer.text


@pytest.mark.parametrize(
    "command",
    [
        "kubectl exec {pod} -- id",
        "kubectl attach {pod}",
        "timeout 10 kubectl port-forward {pod} 9090",
        "kubectl get --raw /api/v1/namespaces/{namespace}/pods/{pod}:9090/proxy/metrics",
        "kubectl get --raw /api/v1/namespaces/{namespace}/services/cli-mcp-demo-proxy:8080/proxy/",
        "kubectl get --raw /api/v1/nodes/node1/proxy/pods",
        "kubectl create token investigator",
        "kubectl cp /etc/hostname {pod}:/tmp/x",
    ],
)
def test_channels_around_the_proxy_are_refused_readably(
    ready: Instance, client: McpClient, session: str, command: str
) -> None:
    (pod, *_) = ready.component("proxy")
    answer = client.bash(session, command.format(pod=pod["metadata"]["name"], namespace=ready.namespace))
    assert answer.exit_code != 0
    assert "path not allowed" in answer.text or "upgrade not allowed" in answer.text
