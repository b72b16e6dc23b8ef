"""Which objects Metacontroller shows to sync besides the children.

Depends on the instance's name and spec only: Metacontroller asks once per generation. A rule without a
namespace, or with an empty list of names, would select everything, so each has a namespace and names or a
selector.
"""

from typing import Any

from cli_mcp.api.instance import InstanceSpec
from hooks.children import CHILDREN
from hooks.credentials import required_secrets
from hooks.instance import InvalidSpec, read_spec
from hooks.network import CLUSTER_DNS_SERVICES
from hooks.wire import (
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NETWORK_POLICY,
    SECRET,
    SERVICE,
    ChildKind,
    MalformedRequest,
    Manifest,
    Parent,
    parse_parent,
)


def customize(body: Any) -> Manifest:
    """The answer to a customize request. Raises MalformedRequest."""
    if not isinstance(body, dict):
        raise MalformedRequest("the request is no object")
    parent = parse_parent(body.get("parent"))
    return {"relatedResources": related_rules(parent)}


def related_rules(parent: Parent) -> list[Manifest]:
    """An instance that cannot be read still shows what its name implies."""
    try:
        spec = read_spec(parent)
    except InvalidSpec:
        spec = InstanceSpec()
    rules = [_by_name(kind, parent.namespace, found) for kind, found in _names_by_kind(parent, spec).items()]
    rules += [_by_name(SERVICE, namespace, {name}) for namespace, name in CLUSTER_DNS_SERVICES]
    rules.append(
        _by_selector(
            ENDPOINT_SLICE,
            parent.namespace,
            {"matchLabels": {"kubernetes.io/service-name": parent.names.proxy}},
        )
    )
    # All but our own, which are children.
    foreign = {"key": "controller-uid", "operator": "NotIn", "values": [parent.uid]}
    rules.append(_by_selector(NETWORK_POLICY, parent.namespace, {"matchExpressions": [foreign]}))
    return rules


def _names_by_kind(parent: Parent, spec: InstanceSpec) -> dict[ChildKind, set[str]]:
    """The admin's Secrets; and the names of all children, to see who took one that does not become ours."""
    found: dict[ChildKind, set[str]] = {CONFIG_MAP: {parent.names.server}}
    for child in CHILDREN:
        if child.kind is not NETWORK_POLICY:
            found.setdefault(child.kind, set()).add(child.name(parent.names))
    target = spec.proxy and spec.proxy.kubernetes_target
    kubeconfig = {target.secret_name or parent.names.kubeconfig} if target else set()
    found[SECRET] = {
        parent.names.proxy_ca,
        parent.names.session_key,
        parent.names.ssh_host_key,
        *required_secrets(parent.names, spec),
        *kubeconfig,
    }
    return found


def _by_name(kind: ChildKind, namespace: str, found: set[str]) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "resource": kind.resource,
        "namespace": namespace,
        "names": sorted(found),
    }


def _by_selector(kind: ChildKind, namespace: str, selector: Manifest) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "resource": kind.resource,
        "namespace": namespace,
        "labelSelector": selector,
    }
