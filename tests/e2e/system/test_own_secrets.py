"""A credential that may do everything with Secrets of the instance's namespace gives a sandbox none of those
that the instance is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli_mcp.names import InstanceNames
from tests.e2e.operator import get
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from tests.e2e.instances import Instance

SESSION = "reads-secrets"
EVERYTHING = ({"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]},)


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"proxy": KUBERNETES}, EVERYTHING)
    instance.make_secret("another", {"key": "of somebody else"})
    instance.wait_for("Ready", 120)
    assert instance.client().bash_once_started(SESSION, "echo hi").stdout == "hi\n"
    return instance


@pytest.mark.parametrize(
    "command",
    [
        "get secrets -o yaml",
        "get secrets -o name",
        "get secrets -A -o yaml",
        "get secrets -w -o yaml",
        "get secrets -l app!=x -o yaml",
        "get --raw /api/v1/namespaces/{namespace}/secrets",
        "get --raw /api/v1/watch/namespaces/{namespace}/secrets",
        "get --raw /api/v1/namespaces/{namespace}/%73ecrets/{session_key}",
        "get secret {kubeconfig} -o yaml",
        "get secret {session_key} -o yaml",
        "get secret {proxy_ca} -o yaml",
        "get secret {tls} -o yaml",
        "patch secret {session_key} -p {{}} -o yaml",
        "annotate secret {kubeconfig} a=b -o yaml",
        "delete secret {proxy_ca} --wait=false",
        "delete secrets --all --wait=false",
    ],
)
def test_no_request_includes_one(ready: Instance, command: str) -> None:
    own = InstanceNames(ready.name)
    names = {"kubeconfig": own.kubeconfig, "session_key": own.session_key, "proxy_ca": own.proxy_ca}
    asked = command.format(namespace=ready.namespace, tls=own.tls, **names)
    answer = ready.client().bash(SESSION, f"timeout 20 kubectl -n {ready.namespace} {asked} 2>&1", 30)
    assert answer.exit_code == 1, answer.text
    assert "sandbox's own instance" in answer.stdout
    for name in (own.kubeconfig, own.session_key, own.proxy_ca, own.tls):
        assert get(ready.namespace, "secret", name), name


def test_others_are_reached_as_the_refusal_says(ready: Instance) -> None:
    kubectl = f"kubectl -n {ready.namespace}"
    client = ready.client()
    refused = client.bash(SESSION, f"{kubectl} get secrets 2>&1", 30).stdout
    selector = refused.strip().partition("--field-selector=")[2]
    listed = client.bash(SESSION, f"{kubectl} get secrets -o name --field-selector='{selector}'", 30)
    assert "secret/another" in listed.stdout, listed.text
    assert InstanceNames(ready.name).session_key not in listed.stdout
    read = client.bash(SESSION, f"{kubectl} get secret another -o jsonpath={{.data.key}} | base64 -d", 30)
    assert read.stdout == "of somebody else"
