"""Who may call an instance, and whose sessions are whose, through its Deployment and Service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import requests

from cli_mcp import names
from tests.e2e.instances import Instance
from tests.e2e.operator import Object, apply, eventually, get, kubectl
from tests.e2e.tokens import expired
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.mcp_client import McpClient

# 10 s of the server's cache, 10 s of the API server's own, and some for a busy machine.
REVOKED_SECONDS = 25
SPEC: Object = {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST}


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"replicas": 2, **SPEC})
    other = other_instance(instance)
    other.apply(SPEC)
    instance.wait_for("Ready", 60)
    eventually(lambda: get(other.namespace, "rolebinding", "cli-mcp-other-client"), 30)
    return instance


def other_instance(beside: Instance) -> Instance:
    """In the same namespace, without the Secrets that it needs; its clients have their account."""
    return Instance(beside.namespace, "other", folder=beside.folder)


def status(client: McpClient) -> int:
    return client.post("status", "bash", command=":").status_code


@dataclass(frozen=True)
class Refused:
    """A token that gets this status, and no further."""

    status: int
    token: Callable[[Instance], str]


REFUSED = {
    "no token": Refused(401, lambda instance: ""),
    "a guess": Refused(401, lambda instance: "guess"),
    "a broken signature": Refused(401, lambda instance: instance.token()[:-20] + "A" * 20),
    "expired": Refused(401, lambda instance: expired(instance.token())),
    "for the MCP server alone": Refused(
        401,
        lambda instance: kubectl(
            "-n",
            instance.namespace,
            "create",
            "token",
            "cli-mcp-demo-client",
            f"--audience={names.GROUP}/{instance.namespace}/demo",
        ).strip(),
    ),
    "no right": Refused(403, lambda instance: instance.make_account("stranger")),
    "another instance's client": Refused(403, lambda instance: other_instance(instance).token()),
    "the server's own account": Refused(403, lambda instance: instance.token("cli-mcp-demo")),
    "the investigator": Refused(403, lambda instance: instance.token("investigator")),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_who_may_not_call_is_told_so_by_every_replica(ready: Instance, refused: Refused) -> None:
    token = refused.token(ready)
    for client in ready.replicas(token):
        assert status(client) == refused.status
        assert client.end("status").status_code == refused.status
    assert ready.session_pods("status") == []


def test_a_session_is_for_the_caller_who_began_it(ready: Instance) -> None:
    owner, stranger = ready.client(), ready.client(ready.make_caller("second"))
    assert owner.bash("mine", "SECRET=42").exit_code == 0
    answer = stranger.bash("mine", "echo $SECRET")
    assert answer.is_error and "another caller" in answer.text and "42" not in answer.text
    assert stranger.end("mine").status_code == 403
    assert owner.bash("mine", "echo $SECRET").stdout == "42\n"
    assert stranger.bash("theirs", "echo [$SECRET]").stdout == "[]\n"
    assert len(ready.session_pods("mine")) == 1


def test_who_may_look_at_metrics_may_not_call(ready: Instance) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    rule = {"apiGroups": [names.GROUP], "resources": ["climcpinstances/mcp"], "verbs": ["get"]}
    apply({**role, "metadata": {"name": "monitor", "namespace": ready.namespace}, "rules": [rule]})
    monitor = ready.client(ready.make_account("monitor", "monitor"))
    assert monitor.get("/metrics").status_code == 200
    assert status(monitor) == 403
    assert ready.client(ready.make_account("nobody")).get("/metrics").status_code == 403


REVOKED = {"rolebinding": 403, "serviceaccount": 401}


@pytest.mark.parametrize(("kind", "expected"), REVOKED.items())
def test_who_loses_the_right_is_refused_within_seconds(ready: Instance, kind: str, expected: int) -> None:
    name = f"leaves-with-{kind}"
    clients = ready.replicas(ready.make_caller(name))
    assert [status(it) for it in clients] == [200] * 2
    kubectl("-n", ready.namespace, "delete", kind, name)
    eventually(lambda: [status(it) for it in clients] == [expected] * 2, REVOKED_SECONDS)


def test_only_tls_with_a_certificate_of_the_service_is_spoken(ready: Instance) -> None:
    address = ready.client().url.removeprefix("https://")
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://{address}/live", timeout=10)
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"https://{address}/live", timeout=10)
