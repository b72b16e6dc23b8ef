"""What the hooks would return for an instance, without a cluster: as it would be there, or as somebody
observed it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from cli_mcp import names
from cli_mcp.session_keys import SessionKey
from hooks.credentials import TLS_KEYS
from hooks.customize import related_rules
from hooks.generated import encoded_data
from hooks.keys import Authority
from hooks.reconcile import sync
from hooks.settings import Settings
from hooks.ssh import AUTHORIZED_KEYS, HOST_KEY
from hooks.wire import CHILD_KINDS, ENDPOINT_SLICE, POD, SECRET, Manifest, Parent, parse_parent

ASSUMED_ADDRESS = "192.0.2.1"
ASSUMED_SERVER = "https://kubernetes.example.com:6443"
NOT_SHOWN = "(not shown)"
_ASSUMED_UID = "00000000-0000-0000-0000-000000000000"
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
# Children depend on children that depend on Secrets: after this many passes nothing new comes.
_MAX_PASSES = 8


@dataclass(frozen=True, slots=True)
class Preview:
    """`gate` is why there are no sandboxes yet, empty when there are; contents of Secrets are blotted out."""

    children: list[Manifest]
    status: Manifest
    gate: str


class _PlaceholderKeys:
    """Stands in for keys that are never shown."""

    def proxy_authority(self, common_name: str, now: datetime) -> Authority:
        return Authority(NOT_SHOWN, NOT_SHOWN)

    def session_key(self, now: datetime) -> SessionKey:
        return SessionKey(
            kid="0" * 16, published_at=now, private_key=NOT_SHOWN, public_key="(made in the cluster)"
        )

    def ssh_host_key(self) -> str:
        return NOT_SHOWN


def preview_observed(
    instance: Manifest, objects: Iterable[Manifest], settings: Settings, now: datetime
) -> Preview:
    """The next answer when exactly `objects` are in the instance's namespace."""
    parent = parse_parent(_complete(instance))
    children: dict[str, dict[str, Manifest]] = {kind.key: {} for kind in CHILD_KINDS}
    related: dict[str, dict[str, Manifest]] = {}
    for manifest in objects:
        metadata = manifest["metadata"]
        key = f"{manifest['kind']}.{manifest['apiVersion']}"
        owners = metadata.get("ownerReferences") or ()
        mine = any(owner.get("uid") == parent.uid for owner in owners)
        group = children if mine and key in children else related
        group.setdefault(key, {})[f"{metadata.get('namespace', parent.namespace)}/{metadata['name']}"] = (
            manifest
        )
    return _preview(_sync(parent, children, related, settings, now))


def preview_settled(instance: Manifest, settings: Settings) -> Preview:
    """The answer in a cluster where everything but the sandboxes is in place: the admin's Secrets with a
    kubeconfig for ASSUMED_SERVER, ASSUMED_ADDRESS as the proxy's ClusterIP, a ready proxy."""
    parent = parse_parent(_complete(instance))
    related = _assumed_related(parent)
    children: dict[str, dict[str, Manifest]] = {kind.key: {} for kind in CHILD_KINDS}
    for _ in range(_MAX_PASSES):
        answer = _sync(parent, children, related, settings, _EPOCH)
        settled = {
            kind.key: {
                f"{parent.namespace}/{child['metadata']['name']}": _settled(child)
                for child in answer["children"]
                if (child["apiVersion"], child["kind"]) == (kind.api_version, kind.kind) and kind is not POD
            }
            for kind in CHILD_KINDS
        }
        if settled == children:
            break
        children = settled
    return _preview(answer)


def _sync(
    parent: Parent,
    children: dict[str, dict[str, Manifest]],
    related: dict[str, dict[str, Manifest]],
    settings: Settings,
    now: datetime,
) -> Manifest:
    request = {
        "controller": {},
        "parent": parent.manifest,
        "children": children,
        "related": related,
        "finalizing": False,
    }
    return sync(request, settings, now, _PlaceholderKeys())


def _preview(answer: Manifest) -> Preview:
    config = next(
        (
            json.loads(child["data"][names.SANDBOX_CONFIG_KEY])
            for child in answer["children"]
            if child["kind"] == "ConfigMap" and names.SANDBOX_CONFIG_KEY in child.get("data", {})
        ),
        None,
    )
    gate = "" if config is None else config["gate"]["reason"]
    return Preview([_without_secrets(child) for child in answer["children"]], answer["status"], gate)


def _without_secrets(child: Manifest) -> Manifest:
    return {**child, "data": dict.fromkeys(child["data"], NOT_SHOWN)} if child["kind"] == "Secret" else child


def _complete(instance: Manifest) -> Manifest:
    metadata = {"namespace": "default", "uid": _ASSUMED_UID, "generation": 1, **instance["metadata"]}
    return {**instance, "metadata": metadata}


def _settled(child: Manifest) -> Manifest:
    """The child as the cluster would show it, as far as the hooks look."""
    metadata = {"creationTimestamp": _EPOCH.strftime("%Y-%m-%dT%H:%M:%SZ"), **child["metadata"]}
    if child["kind"] == "Service":
        return {**child, "metadata": metadata, "spec": {**child["spec"], "clusterIP": ASSUMED_ADDRESS}}
    if child["kind"] == "Deployment":
        available = {"conditions": [{"type": "Available", "status": "True"}]}
        return {**child, "metadata": metadata, "status": available}
    return {**child, "metadata": metadata}


def _assumed_related(parent: Parent) -> dict[str, dict[str, Manifest]]:
    wanted = next(rule["names"] for rule in related_rules(parent) if rule["resource"] == SECRET.resource)
    ours = {parent.names.proxy_ca, parent.names.session_key, parent.names.ssh_host_key}
    return {
        SECRET.key: {
            f"{parent.namespace}/{name}": _assumed_secret(parent, name) for name in wanted if name not in ours
        },
        ENDPOINT_SLICE.key: {f"{parent.namespace}/assumed": _assumed_endpoints(parent)},
    }


def _assumed_secret(parent: Parent, name: str) -> Manifest:
    """Has every key that a Secret of an admin may need."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": ASSUMED_SERVER}}],
        "users": [{"name": "user", "user": {"token": NOT_SHOWN.replace(" ", "-")}}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    }
    keys = (*TLS_KEYS, AUTHORIZED_KEYS, HOST_KEY)
    data = encoded_data({**dict.fromkeys(keys, NOT_SHOWN), names.KUBECONFIG_KEY: json.dumps(kubeconfig)})
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": parent.namespace},
        "data": data,
    }


def _assumed_endpoints(parent: Parent) -> Manifest:
    labels = {"kubernetes.io/service-name": parent.names.proxy}
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {"name": "assumed", "namespace": parent.namespace, "labels": labels},
        "endpoints": [{"conditions": {"ready": True}}],
    }
