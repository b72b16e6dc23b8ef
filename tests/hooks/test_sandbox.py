"""The sandbox pod: what it holds, what it can reach, its environment, and what makes a new pool hash."""

from typing import Any

from cli_mcp import names
from cli_mcp.sandbox_environment import OPERATOR_OWNED_ENV
from hooks.children import Inputs, fixed_children
from hooks.routes import Routes
from hooks.sandbox import SandboxTemplate, sandbox_template
from hooks.wire import Manifest
from tests.hooks.test_children import inputs
from tests.hooks.world import SETTINGS


def template(sandbox: dict[str, Any] | None = None, **changes: Any) -> SandboxTemplate:
    found = sandbox_template(inputs({"sandbox": sandbox or {}}, **changes))
    assert found is not None
    return found


def with_kubernetes(sandbox: dict[str, Any]) -> SandboxTemplate:
    proxy = {"targets": [{"type": "kubernetes"}]}
    found = sandbox_template(inputs({"sandbox": sandbox, "proxy": proxy}))
    assert found is not None
    return found


def container(pod: Manifest) -> Manifest:
    (only,) = pod["spec"]["containers"]
    found: Manifest = only
    return found


def test_a_sandbox_holds_no_credential() -> None:
    spec = template().pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    secrets = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    assert secrets == [
        {"secretName": "cli-mcp-demo-proxy-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    ]


def test_the_operators_variables_win_and_all_of_them_are_set() -> None:
    env = [{"name": name, "value": "mine"} for name in ("HOME", "https_proxy", "CLI_MCP_POD_UID", "EDITOR")]
    variables = container(with_kubernetes({"env": env}).pod)["env"]
    by_name = {variable["name"]: variable.get("value") for variable in variables}
    assert len(by_name) == len(variables)
    assert by_name["EDITOR"] == "mine"
    assert "mine" not in {value for name, value in by_name.items() if name != "EDITOR"}
    assert set(by_name) >= OPERATOR_OWNED_ENV - {"KUBERNETES_MASTER"}
    assert by_name["KUBECONFIG"] == names.KUBECONFIG_PATH
    assert by_name["SSL_CERT_FILE"] == names.CA_PATH
    assert by_name["HTTPS_PROXY"] == by_name["https_proxy"] == "http://cli-mcp-demo-proxy:8080"


def test_without_a_kubernetes_target_there_is_no_kubeconfig() -> None:
    pod = template().pod
    assert "KUBECONFIG" not in {variable["name"] for variable in container(pod)["env"]}
    assert not [mount for mount in container(pod)["volumeMounts"] if "/config" in mount["mountPath"]]
    assert "config" not in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_a_pod_calls_itself_by_the_name_that_no_proxy_is_asked_for() -> None:
    pod = template().pod
    (no_proxy,) = [variable["value"] for variable in container(pod)["env"] if variable["name"] == "NO_PROXY"]
    assert pod["spec"]["hostname"] in no_proxy.split(",")


def test_variables_have_nothing_that_the_api_server_would_not_store() -> None:
    env = [
        {"name": "EMPTY", "value": ""},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": False}}},
        {"name": "FIELD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    assert container(template({"env": env}).pod)["env"][:3] == [
        {"name": "EMPTY"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "FIELD", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
    ]


def test_an_image_of_the_admins_gets_the_agent_and_the_own_image_does_not() -> None:
    own, named, other = (
        template(sandbox).pod["spec"]
        for sandbox in ({}, {"image": SETTINGS.sandbox_image}, {"image": "registry.example.com/tools:1"})
    )
    assert own == named
    assert "initContainers" not in own
    assert other["initContainers"][0]["image"] == SETTINGS.sandbox_image
    assert container({"spec": other})["image"] == "registry.example.com/tools:1"
    assert container({"spec": other})["command"] == container({"spec": own})["command"]


def test_without_dns_the_proxys_address_is_in_etc_hosts_and_no_policy_lets_dns_out() -> None:
    spec = template().pod["spec"]
    assert spec["dnsPolicy"] == "None"
    assert spec["hostAliases"] == [{"ip": "10.96.0.20", "hostnames": ["cli-mcp-demo-proxy"]}]
    assert sandbox_template(inputs(proxy_address=None)) is None
    (egress,) = policy("cli-mcp-demo-sandbox", inputs())["egress"]
    assert egress["ports"] == [{"port": 8080, "protocol": "TCP"}]


def test_with_dns_the_sandbox_asks_the_cluster_and_nothing_else() -> None:
    with_dns = inputs({"sandbox": {"dns": "cluster"}}, proxy_address=None)
    found = sandbox_template(with_dns)
    assert found is not None
    assert found.pod["spec"]["dnsPolicy"] == "ClusterFirst"
    assert "hostAliases" not in found.pod["spec"]
    _, dns = policy("cli-mcp-demo-sandbox", with_dns)["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {
        (53, "UDP"),
        (53, "TCP"),
        (5353, "UDP"),
        (5353, "TCP"),
    }
    assert {"ipBlock": {"cidr": "169.254.20.10/32"}} in dns["to"]


def policy(name: str, given: Inputs) -> Manifest:
    found: Manifest = next(
        child["spec"]
        for child in fixed_children(given)
        if child["kind"] == "NetworkPolicy" and child["metadata"]["name"] == name
    )
    return found


def test_the_pool_hash_covers_what_a_pod_mounts_by_subpath() -> None:
    same = template().pool_hash
    assert (
        template(routes=Routes("other routes", "kubeconfig", ("elsewhere:443",), complete=True)).pool_hash
        == same
    )
    assert template(session_keys=None).pool_hash == same
    assert template(routes=Routes("{}", "another kubeconfig", (), complete=True)).pool_hash != same
    assert template().pod["metadata"]["labels"][names.LABEL_POOL_HASH] == same


def test_a_pool_pod_and_its_claim_have_one_name_and_leave_the_template_alone() -> None:
    found = template({"workspace": {"persistent": True, "size": "1024Mi", "storageClassName": "fast"}})
    pod, claim = found.pool_pod("a"), found.pool_claim("a")
    assert claim is not None
    assert pod["metadata"]["name"] == claim["metadata"]["name"] == "a"
    volume = next(it for it in pod["spec"]["volumes"] if it["name"] == "workspace")
    assert volume == {"name": "workspace", "persistentVolumeClaim": {"claimName": "a"}}
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    assert "name" not in found.pod["metadata"]
    assert template().pool_claim("a") is None
