"""sync: from what Metacontroller shows of an instance to what should exist.

parse, observe, plan (routes, Secrets, children, gate, pool), status, checked answer. A request that cannot
be read is an exception, which the edge answers with 500 and which changes nothing; a *spec* that cannot be
read keeps everything as it is and says so.
"""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from cli_mcp import names
from cli_mcp.api.instance import InstanceSpec
from cli_mcp.sandbox_config import Gate, SandboxConfig, SessionLimits
from hooks import generated
from hooks.answer import checked
from hooks.children import (
    Inputs,
    fixed_children,
    generated_secret,
    server_config_map,
)
from hooks.credentials import check_expiry, check_secrets
from hooks.diagnosis import observed_problems, pool_trouble
from hooks.echo import kept
from hooks.gate import closed_because
from hooks.generated import decoded_data
from hooks.instance import InvalidSpec, read_spec
from hooks.keys import KeyGenerator
from hooks.network import dns_addresses, proxy_address
from hooks.path import path_problems, path_report
from hooks.pods import Role, SandboxPod, observe_pod
from hooks.pool import PoolPlan, PoolPolicy, plan_pool
from hooks.problem import Problem, Reason
from hooks.repairs import address_to_restore, cut_off, remade_account
from hooks.routes import plan_routes
from hooks.sandbox import SandboxTemplate, sandbox_template
from hooks.settings import Settings
from hooks.ssh import HOST_KEY, host_key_secret, read_host_key
from hooks.status import PoolState, conditions, only_ready
from hooks.wire import (
    CONFIG_MAP,
    KINDS_BY_KEY,
    POD,
    SECRET,
    HookRequest,
    Manifest,
    Parent,
    is_terminating,
    parse_request,
)
from hooks.workspaces import WorkspacePlan, plan_workspaces


def sync(body: Any, settings: Settings, now: datetime, keygen: KeyGenerator) -> Manifest:
    """The answer to a sync request. `now` is aware; `keygen` is asked only for Secrets that do not exist or
    are to be rotated. Raises MalformedRequest, and UnsafeAnswer for a defect of the hooks."""
    request = parse_request(body)
    try:
        spec = read_spec(request.parent)
    except InvalidSpec as error:
        return checked(_keep_everything(request, str(error), now), request.parent)
    return checked(_reconcile(request, spec, settings, now, keygen), request.parent)


def _reconcile(
    request: HookRequest, spec: InstanceSpec, settings: Settings, now: datetime, keygen: KeyGenerator
) -> Manifest:
    parent = request.parent
    pods = [observe_pod(manifest, parent) for manifest in request.children[POD.key].values()]
    routes, problems = plan_routes(request, spec)
    proxy_ca = generated.proxy_ca(request, now, keygen)
    session_key = generated.session_key(request, now, keygen, _oldest_sandbox(pods))
    secrets = [proxy_ca, session_key]
    if spec.ssh and not spec.ssh.host_key_secret:
        secrets.append(generated.ssh_host_key(request, keygen))
    session_keys = generated.public_keys(session_key)
    leaving_keys, next_key_change = generated.leaving_keys(request, session_keys, now)
    inputs = Inputs(
        parent=parent,
        spec=spec,
        settings=settings,
        routes=routes,
        dns_addresses=dns_addresses(request),
        proxy_address=proxy_address(request),
        session_keys=session_keys,
        leaving_keys=leaving_keys,
        ca_certificates=generated.trusted_certificates(proxy_ca),
        address_to_restore=address_to_restore(request, pods, now),
        remade_server_account=remade_account(request, parent.names.server),
        remade_ssh_account=remade_account(request, parent.names.ssh),
    )
    children = fixed_children(inputs)
    closed = closed_because(request, inputs, children)
    template = sandbox_template(inputs)
    workspaces, pool, sandboxes = _plan_sandboxes(request, spec, pods, template, closed is None, now)
    children += _still_published(request, inputs)
    children.append(server_config_map(inputs, sandbox_config(inputs, template, closed)))
    children += [generated_secret(parent, secret) for secret in secrets]

    expiry_problems, next_expiry = check_expiry(request, _kubeconfig_secret(parent, spec), proxy_ca, now)
    problems += check_secrets(request, spec) + expiry_problems
    problems += observed_problems(request, children, pool, workspaces) + cut_off(request, pods)
    path = path_report(request)
    problems += path_problems(path)
    if closed and all(problem.warning for problem in problems):
        problems.append(Problem(Reason.RECONCILING, f"no sandboxes yet: {closed}"))
    state = PoolState(pool.ready, spec.sandbox.warm_pool_size, pool_trouble(pool))
    written, next_condition = conditions(parent, problems, state, path, now)
    answer: Manifest = {
        "status": {
            "warmPoolReady": pool.ready,
            "warmPoolDesired": spec.sandbox.warm_pool_size,
            "resolvedSandboxImage": spec.sandbox.image or settings.sandbox_image,
            "resolvedAgentImage": settings.sandbox_image,
            "clientServiceAccount": parent.names.client,
            **_ssh_status(request, spec),
            "conditions": written,
        },
        "children": children + sandboxes,
    }
    checks = (pool.next_check, workspaces.next_check, next_expiry, next_condition, next_key_change)
    return answer | _resync(checks, now)


def _plan_sandboxes(
    request: HookRequest,
    spec: InstanceSpec,
    pods: list[SandboxPod],
    template: SandboxTemplate | None,
    gate_open: bool,
    now: datetime,
) -> tuple[WorkspacePlan, PoolPlan, list[Manifest]]:
    """The plans, and all pods and claims that follow from them."""
    sandbox = spec.sandbox
    pool_hash = template.pool_hash if template else None
    prefix = request.parent.names.pool_prefix
    workspaces = plan_workspaces(
        request,
        pods,
        timedelta(seconds=sandbox.workspace.retain_seconds),
        now,
        pool_hash if gate_open else None,
    )
    policy = PoolPolicy(
        size=sandbox.warm_pool_size,
        idle_timeout=timedelta(seconds=sandbox.idle_timeout_seconds),
        max_lifetime=_seconds(sandbox.max_lifetime_seconds),
        pool_hash=pool_hash,
        replaceable=gate_open,
    )
    pool = plan_pool(pods, workspaces, policy, now, prefix)
    new_names = [f"{prefix}{slot}" for slot in pool.slots]
    children = workspaces.children + workspaces.rest(new_names, give_up=gate_open) + pool.children
    if template is not None:
        children += [template.pool_pod(name) for name in new_names]
        claims = [template.pool_claim(name) for name in new_names if name not in workspaces.unused]
        children += [claim for claim in claims if claim is not None]
    return workspaces, pool, children


def sandbox_config(inputs: Inputs, template: SandboxTemplate | None, closed: str | None) -> str:
    """sandbox.json, what the server works by."""
    parent, sandbox = inputs.parent, inputs.spec.sandbox
    # A server of the version before knows no such field, and would close its gate until it is rolled.
    unsaid = {"default_session"} if inputs.spec.default_session == "perCaller" else None
    return SandboxConfig(
        gate=Gate(open=closed is None, reason=closed or ""),
        pool_hash=template.pool_hash if template else None,
        template=template.pod if template else None,
        owner_reference={
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": parent.name,
            "uid": parent.uid,
            "controller": True,
        },
        limits=SessionLimits(
            idle_timeout_seconds=sandbox.idle_timeout_seconds,
            max_sessions=sandbox.max_sessions,
            max_sessions_per_owner=sandbox.max_sessions_per_owner,
            max_lifetime_seconds=sandbox.max_lifetime_seconds,
        ),
        commands=sandbox.command_limits,
        tools=inputs.spec.tools,
        default_session=inputs.spec.default_session,
        reach=inputs.routes.reach,
        workspace_claim=template.workspace_claim if template else None,
    ).model_dump_json(by_alias=True, exclude=unsaid)


def _keep_everything(request: HookRequest, error: str, now: datetime) -> Manifest:
    echoes = [
        kept(observed)
        for kind, objects in request.children.items()
        for observed in objects.values()
        if not is_terminating(observed) and not (KINDS_BY_KEY[kind] is POD and _is_retiring(observed))
    ]
    return {
        "status": only_ready(request.parent, Problem(Reason.SPEC_INVALID, error), now),
        "children": [echo for echo in echoes if echo is not None],
    }


def _is_retiring(manifest: Manifest) -> bool:
    return (manifest["metadata"].get("labels") or {}).get(names.LABEL_STATE) == names.STATE_RETIRING


def _oldest_sandbox(pods: Iterable[SandboxPod]) -> datetime | None:
    return min((pod.created for pod in pods if pod.role is not Role.FOREIGN), default=None)


def _kubeconfig_secret(parent: Parent, spec: InstanceSpec) -> str | None:
    target = spec.proxy and spec.proxy.kubernetes_target
    return (target.secret_name or parent.names.kubeconfig) if target else None


def _still_published(request: HookRequest, inputs: Inputs) -> list[Manifest]:
    """While session keys or the proxy's authority are being made again, sandboxes keep those that they
    know."""
    n = request.parent.names
    unknown = [
        name
        for name, value in ((n.session_keys, inputs.session_keys), (n.proxy_ca, inputs.ca_certificates))
        if value is None
    ]
    observed = (request.child(CONFIG_MAP, name) for name in unknown)
    echoes = (kept(one) for one in observed if one is not None)
    return [echo for echo in echoes if echo is not None]


def _ssh_status(request: HookRequest, spec: InstanceSpec) -> Manifest:
    """What clients check the gateway by, once its host key has been observed."""
    if spec.ssh is None:
        return {}
    name = host_key_secret(request.parent.names, spec.ssh)
    secret = request.child(SECRET, name) or request.related_object(SECRET, name)
    key = read_host_key(decoded_data(secret).get(HOST_KEY, "")) if secret else None
    if key is None:
        return {}
    return {"ssh": {"hostKeyFingerprint": key.fingerprint, "knownHosts": key.known_hosts(request.parent)}}


def _resync(checks: Iterable[datetime | None], now: datetime) -> dict[str, int]:
    due = min((check for check in checks if check is not None), default=None)
    return {} if due is None else {"resyncAfterSeconds": max(1, math.ceil((due - now).total_seconds()))}


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)
