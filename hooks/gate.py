"""Whether sandboxes may exist yet: only behind policies, routes and a proxy that have been *observed*.

Metacontroller makes pods before policies within one sync, so wanting both at once is not enough. A closed
gate makes nothing new and takes nothing away.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cli_mcp import names
from hooks.children import Inputs
from hooks.network import proxy_has_endpoint
from hooks.wire import (
    CONFIG_MAP,
    NETWORK_POLICY,
    SECRET,
    SERVICE_ACCOUNT,
    ChildKind,
    HookRequest,
    Manifest,
)

GatedNames = Callable[[names.InstanceNames], str]


@dataclass(frozen=True, slots=True)
class Precondition:
    """An object that has to be in the cluster; `fields` of it exactly as they are desired."""

    kind: ChildKind
    name: GatedNames
    fields: tuple[str, ...] = ()


PRECONDITIONS = (
    Precondition(NETWORK_POLICY, lambda n: n.sandbox, ("spec",)),
    Precondition(NETWORK_POLICY, lambda n: n.proxy, ("spec",)),
    Precondition(CONFIG_MAP, lambda n: n.proxy, ("data",)),
    Precondition(CONFIG_MAP, lambda n: n.session_keys),
    Precondition(SECRET, lambda n: n.proxy_ca),
    Precondition(SERVICE_ACCOUNT, lambda n: n.sandbox),
)


def closed_because(request: HookRequest, inputs: Inputs, desired: list[Manifest]) -> str | None:
    """The first thing that is missing, for a reader who waits for a sandbox; None when the gate is open."""
    if inputs.spec.proxy is None:
        return "spec.proxy is missing: without targets there is nothing that a sandbox may reach"
    if not inputs.routes.complete:
        return "the kubernetes target has no usable kubeconfig yet"
    wanted = {
        (manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in desired
    }
    for precondition in PRECONDITIONS:
        kind, name = precondition.kind, precondition.name(request.parent.names)
        observed = request.child(kind, name)
        if observed is None:
            return f"{kind.kind} {name} is not there yet"
        desired_one: Mapping[str, object] = wanted.get((kind.api_version, kind.kind, name), {})
        if any(observed.get(field) != desired_one.get(field) for field in precondition.fields):
            return f"{kind.kind} {name} is not what it should be yet"
    if not proxy_has_endpoint(request):
        return f"no proxy pod of Deployment {request.parent.names.proxy} is ready"
    if inputs.spec.sandbox.dns == "none" and inputs.proxy_address is None:
        return f"Service {request.parent.names.proxy} has no address yet"
    return None
