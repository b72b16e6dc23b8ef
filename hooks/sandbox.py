"""The sandbox pod: its template, the claim of its workspace, and the hash of all that it starts with."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from cli_mcp import names
from cli_mcp.api import pod as pod_api
from cli_mcp.api.instance import DEFAULT_WORKSPACE_SIZE
from cli_mcp.api.model import ApiModel
from cli_mcp.sandbox_environment import HOSTNAME, OPERATOR_OWNED_ENV, sandbox_environment
from hooks.canonical import canonical_quantity, canonical_tolerations
from hooks.children import Inputs, Values, common_values, identity_values, persistent, resources
from hooks.templates import render
from hooks.wire import Manifest

# Stands in the template where a pod's own name will be.
WORKSPACE_CLAIM_PLACEHOLDER = "name-of-the-pod"
_AGENT_POD_UID = "CLI_MCP_POD_UID"
_POOL_HASH_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class SandboxTemplate:
    """A sandbox pod without a name, the spec of its workspace's claim if it has one, and the hash of both
    with all that the pod mounts by subPath."""

    pod: Manifest
    workspace_claim: Manifest | None
    pool_hash: str

    def pool_pod(self, name: str) -> Manifest:
        pod: Manifest = orjson.loads(orjson.dumps(self.pod))
        pod["metadata"] = {"name": name, **pod["metadata"]}
        if self.workspace_claim is not None:
            workspace = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "workspace")
            workspace["persistentVolumeClaim"]["claimName"] = name
        return pod

    def pool_claim(self, name: str) -> Manifest | None:
        if self.workspace_claim is None:
            return None
        claim: Manifest = orjson.loads(orjson.dumps(self.workspace_claim))
        claim["metadata"] = {"name": name, **claim["metadata"]}
        return claim


def sandbox_template(inputs: Inputs) -> SandboxTemplate | None:
    """None while the proxy's address, which sandboxes without DNS have in /etc/hosts, is not known."""
    if inputs.spec.sandbox.dns == "none" and inputs.proxy_address is None:
        return None
    pod = render("sandbox-pod", common_values(inputs) | _sandbox_values(inputs))
    claim = _workspace_claim(inputs) if persistent(inputs.spec) else None
    content = orjson.dumps([pod, claim, inputs.routes.kubeconfig], option=orjson.OPT_SORT_KEYS)
    pool_hash = hashlib.sha256(content).hexdigest()[:_POOL_HASH_CHARACTERS]
    for manifest in (pod, claim):
        if manifest is not None:
            manifest["metadata"]["labels"][names.LABEL_POOL_HASH] = pool_hash
    return SandboxTemplate(pod, claim, pool_hash)


def _workspace_claim(inputs: Inputs) -> Manifest:
    workspace = inputs.spec.sandbox.workspace
    claim = render(
        "workspace-claim",
        identity_values(inputs.parent)
        | {
            "name": WORKSPACE_CLAIM_PLACEHOLDER,
            "size": canonical_quantity(workspace.size or DEFAULT_WORKSPACE_SIZE),
            "storage_class": workspace.storage_class_name or "",
        },
    )
    del claim["metadata"]["name"]
    return claim


def _sandbox_values(inputs: Inputs) -> Values:
    sandbox, settings, proxy = inputs.spec.sandbox, inputs.settings, inputs.spec.proxy
    kubernetes = proxy is not None and proxy.kubernetes_target is not None
    return {
        "cluster_dns": sandbox.dns == "cluster",
        "proxy_ip": inputs.proxy_address if sandbox.dns == "none" else "",
        "hostname": HOSTNAME,
        "kubernetes": kubernetes,
        "operator_env": sandbox_environment(
            f"http://{inputs.parent.names.proxy}:{names.PROXY_PORT}", kubernetes=kubernetes
        ),
        "runtime_class": sandbox.runtime_class_name or "",
        "node_selector": dict(sandbox.node_selector),
        "tolerations": canonical_tolerations([_plain(toleration) for toleration in sandbox.tolerations]),
        "priority_class": sandbox.priority_class_name or "",
        "image_pull_secrets": [_plain(reference) for reference in sandbox.image_pull_secrets],
        "host_users": sandbox.host_users,
        "brings_agent": sandbox.image not in ("", settings.sandbox_image),
        "agent_image": settings.sandbox_image,
        "sandbox_image": sandbox.image or settings.sandbox_image,
        "image_pull_policy": sandbox.image_pull_policy or "",
        "isolation_test": sandbox.isolation_test,
        "env": _environment(sandbox.env),
        "sandbox_resources": resources(sandbox.effective_resources),
        "persistent": persistent(inputs.spec),
        "workspace_claim_name": WORKSPACE_CLAIM_PLACEHOLDER,
    }


def _environment(env: tuple[pod_api.EnvVar, ...]) -> list[Values]:
    """The instance's own variables but those that the operator owns; the last of one name counts, as it does
    for the kubelet."""
    reserved = OPERATOR_OWNED_ENV | {_AGENT_POD_UID}
    by_name = {variable.name: _plain(variable) for variable in env if variable.name not in reserved}
    return [_without_empty(variable) for variable in by_name.values()]


def _plain(model: ApiModel) -> Values:
    plain: Values = model.model_dump(by_alias=True, exclude_none=True)
    return plain


def _without_empty(value: Mapping[str, Any]) -> Values:
    """Without what the API server would not store: empty texts, false `optional`."""
    return {
        key: _without_empty(item) if isinstance(item, Mapping) else item
        for key, item in value.items()
        if item not in ("", False)
    }
