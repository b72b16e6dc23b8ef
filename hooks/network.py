"""The network as it was observed: addresses of DNS and proxy, endpoints, other people's policies."""

from collections.abc import Iterable, Mapping
from typing import Any

from cli_mcp import names
from hooks.wire import ENDPOINT_SLICE, NETWORK_POLICY, SERVICE, HookRequest, Manifest

CLUSTER_DNS_SERVICES = (("kube-system", "kube-dns"), ("openshift-dns", "dns-default"))
# https://kubernetes.io/docs/tasks/administer-cluster/nodelocaldns/
_NODE_LOCAL_DNS = "169.254.20.10/32"


def dns_addresses(request: HookRequest) -> list[str]:
    """CIDRs of DNS besides its pods: the node-local cache, which also answers at the Service's own
    addresses."""
    services = [request.related_object(SERVICE, name, namespace) for namespace, name in CLUSTER_DNS_SERVICES]
    addresses = {address for service in services if service for address in _cluster_ips(service)}
    return [_NODE_LOCAL_DNS, *sorted(f"{address}/{128 if ':' in address else 32}" for address in addresses)]


def proxy_address(request: HookRequest) -> str | None:
    """The ClusterIP of the proxy's Service, once it has one."""
    service = request.child(SERVICE, request.parent.names.proxy)
    return next(iter(_cluster_ips(service)), None) if service else None


def proxy_has_endpoint(request: HookRequest) -> bool:
    """Whether a proxy pod is ready behind the Service."""
    return any(
        # https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#ready: unknown counts as
        # ready
        (endpoint.get("conditions") or {}).get("ready", True) is not False
        for endpoint_slice in request.related_objects(ENDPOINT_SLICE)
        if _labels(endpoint_slice).get("kubernetes.io/service-name") == request.parent.names.proxy
        for endpoint in endpoint_slice.get("endpoints") or ()
    )


def widening_policies(request: HookRequest) -> list[str]:
    """Names of other NetworkPolicies of the namespace that let sandboxes out: policies only ever add up."""
    parent = request.parent
    sandbox = {
        names.LABEL_INSTANCE: parent.name,
        names.LABEL_COMPONENT: names.COMPONENT_SANDBOX,
        names.LABEL_CONTROLLER_UID: parent.uid,
    }
    return sorted(
        policy["metadata"]["name"]
        for policy in request.related_objects(NETWORK_POLICY)
        if not _is_ours(policy, parent.uid)
        and policy["metadata"]["namespace"] == parent.namespace
        and (policy.get("spec") or {}).get("egress")
        and _may_select((policy.get("spec") or {}).get("podSelector") or {}, sandbox)
    )


def _cluster_ips(service: Manifest) -> Iterable[str]:
    spec = service.get("spec") or {}
    return [ip for ip in spec.get("clusterIPs") or [spec.get("clusterIP")] if ip and ip != "None"]


def _is_ours(manifest: Manifest, uid: str) -> bool:
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def _may_select(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a sandbox can match. Labels that sandboxes get later (session, state, hash) may have any
    value."""
    return all(
        labels.get(key, value) == value if key in labels or _varies(key) else False
        for key, value in (selector.get("matchLabels") or {}).items()
    ) and all(_may_match(expression, labels) for expression in selector.get("matchExpressions") or ())


def _may_match(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator = expression.get("key", ""), expression.get("operator")
    if _varies(key):
        return True
    values = expression.get("values") or ()
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return True  # an operator of a later Kubernetes: better reported than missed


def _varies(key: str) -> bool:
    return key in (names.LABEL_POOL_HASH, names.LABEL_SESSION_ID, names.LABEL_STATE)


def _labels(manifest: Manifest) -> Mapping[str, str]:
    return manifest["metadata"].get("labels") or {}
