"""The children: labels, security, environment, and what makes a new pool hash."""

import dataclasses
from typing import Any

import pytest

from cli_mcp import names
from cli_mcp.api.instance import InstanceSpec
from cli_mcp.sandbox_environment import OPERATOR_OWNED_ENV
from hooks.children import CHILDREN, Inputs, fixed_children
from hooks.routes import Routes
from hooks.sandbox import SandboxTemplate, sandbox_template
from hooks.settings import Settings
from hooks.wire import Manifest, Parent
from tests.hooks.world import ALLOWLIST, SETTINGS

PARENT = Parent({"metadata": {}}, "demo", "ns", "uid-1", 1)
INPUTS = Inputs(
    parent=PARENT,
    spec=InstanceSpec.model_validate({"proxy": ALLOWLIST}),
    settings=SETTINGS,
    routes=Routes("{}", "kubeconfig", complete=True),
    dns_addresses=["169.254.20.10/32"],
    proxy_address="10.96.0.20",
    session_keys=[],
)
SSH = {"routes": [{"username": "ann", "authorizedKeysSecret": "keys.of.ann"}]}
OPENSHIFT = Settings(SETTINGS.image, SETTINGS.sandbox_image, "openshift")


def inputs(spec: dict[str, Any] | None = None, **changes: Any) -> Inputs:
    read = InstanceSpec.model_validate({"proxy": ALLOWLIST} | (spec or {}))
    return dataclasses.replace(INPUTS, spec=read, **changes)


def template(sandbox: dict[str, Any] | None = None, **changes: Any) -> SandboxTemplate:
    found = sandbox_template(inputs({"sandbox": sandbox or {}}, **changes))
    assert found is not None
    return found


def container(pod: Manifest) -> Manifest:
    (only,) = pod["spec"]["containers"]
    found: Manifest = only
    return found


def pod_specs(given: Inputs) -> dict[str, Manifest]:
    found = sandbox_template(given)
    assert found is not None
    specs = {"sandbox": found.pod["spec"]}
    for child in fixed_children(given):
        if child["kind"] == "Deployment":
            specs[child["metadata"]["name"]] = child["spec"]["template"]["spec"]
    return specs


def test_every_child_is_in_the_table_once_and_says_whose_it_is() -> None:
    children = fixed_children(inputs({"replicas": 2, "ssh": SSH}))
    assert len(children) == len(CHILDREN)
    for child, entry in zip(children, CHILDREN, strict=True):
        assert (child["apiVersion"], child["kind"]) == (entry.kind.api_version, entry.kind.kind)
        assert child["metadata"]["name"] == entry.name(PARENT.names)
        assert child["metadata"]["namespace"] == "ns"
        labels = child["metadata"]["labels"]
        assert labels[names.LABEL_CONTROLLER_UID] == "uid-1"
        assert labels[names.LABEL_INSTANCE] == "demo"


@pytest.mark.parametrize("platform", [SETTINGS, OPENSHIFT], ids=["generic", "openshift"])
@pytest.mark.parametrize("image", ["", "registry.example.com/tools:1"], ids=["own image", "admin's image"])
def test_every_pod_meets_the_restricted_pod_security_level(platform: Settings, image: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for name, spec in pod_specs(inputs({"sandbox": {"image": image}, "ssh": SSH}, settings=platform)).items():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert ("runAsUser" in spec["securityContext"]) is (platform is SETTINGS), name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        allowed = {"name", "emptyDir", "secret", "configMap", "persistentVolumeClaim"}
        assert all(set(volume) <= allowed for volume in spec["volumes"])
        for it in [*spec["containers"], *spec.get("initContainers", ())]:
            assert it["securityContext"]["allowPrivilegeEscalation"] is False
            assert it["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert it["securityContext"]["readOnlyRootFilesystem"] is True
            assert "privileged" not in it["securityContext"]
            assert not any("hostPort" in port for port in it.get("ports", ()))


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
    variables = container(template({"env": env}).pod)["env"]
    by_name = {variable["name"]: variable.get("value") for variable in variables}
    assert len(by_name) == len(variables)
    assert by_name["EDITOR"] == "mine"
    assert "mine" not in {value for name, value in by_name.items() if name != "EDITOR"}
    assert set(by_name) >= OPERATOR_OWNED_ENV
    assert by_name["KUBECONFIG"] == names.KUBECONFIG_PATH
    assert by_name["SSL_CERT_FILE"] == names.CA_PATH
    assert by_name["HTTPS_PROXY"] == by_name["https_proxy"] == "http://cli-mcp-demo-proxy:8080"


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


def test_on_openshift_the_platform_makes_the_servers_certificate() -> None:
    def annotations(settings: Settings) -> Manifest:
        services = [it for it in fixed_children(inputs(settings=settings)) if it["kind"] == "Service"]
        found: Manifest = services[0]["metadata"].get("annotations", {})
        return found

    assert annotations(OPENSHIFT) == {
        "service.beta.openshift.io/serving-cert-secret-name": "cli-mcp-demo-tls"
    }
    assert annotations(SETTINGS) == {}


def test_the_pool_hash_covers_what_a_pod_mounts_by_subpath() -> None:
    same = template().pool_hash
    assert template(routes=Routes("other routes", "kubeconfig", complete=True)).pool_hash == same
    assert template(session_keys=None).pool_hash == same
    assert template(routes=Routes("{}", "another kubeconfig", complete=True)).pool_hash != same
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
