"""What is wrong with what was observed: missing children, taken names, no pods, no isolation."""

from collections.abc import Iterator

from cli_mcp import names
from hooks.network import widening_policies
from hooks.pool import PoolPlan
from hooks.problem import Problem, Reason
from hooks.wire import DEPLOYMENT, KINDS_BY_KEY, HookRequest, Manifest
from hooks.workspaces import WorkspacePlan

_LISTED_AT_MOST = 5


def observed_problems(
    request: HookRequest, desired: list[Manifest], pool: PoolPlan, workspaces: WorkspacePlan
) -> list[Problem]:
    """All of them; `desired` are the children with names of their own."""
    return [
        *_missing_children(request, desired),
        *_deployment_problems(request),
        *_sandbox_problems(request, pool, workspaces),
    ]


def _missing_children(request: HookRequest, desired: list[Manifest]) -> list[Problem]:
    """Children that did not become ours: taken by somebody, which Metacontroller passes over in silence, or
    on their way."""
    problems: list[Problem] = []
    pending: list[str] = []
    for manifest in desired:
        kind = KINDS_BY_KEY[f"{manifest['kind']}.{manifest['apiVersion']}"]
        name = manifest["metadata"]["name"]
        if request.child(kind, name) is not None:
            continue
        foreign = request.related_object(kind, name)
        if foreign is not None and not _belongs_to(foreign, request.parent.uid):
            problems.append(
                Problem(
                    Reason.NAME_TAKEN,
                    f"{kind.kind} {name} exists and belongs to somebody else; delete or rename it",
                )
            )
        else:
            pending.append(f"{kind.kind} {name}")
    if pending:
        problems.append(Problem(Reason.CHILDREN_NOT_READY, f"being made: {_listed(pending)}"))
    return problems


def _belongs_to(manifest: Manifest, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in manifest["metadata"].get("ownerReferences") or ())


def _deployment_problems(request: HookRequest) -> Iterator[Problem]:
    """None available is a failure; fewer than there should be is worth a word, since callers are served."""
    for name, component in (
        (request.parent.names.server, names.COMPONENT_SERVER),
        (request.parent.names.proxy, names.COMPONENT_PROXY),
        (request.parent.names.ssh, names.COMPONENT_SSH),
    ):
        deployment = request.child(DEPLOYMENT, name)
        if deployment is None:
            continue
        wanted = deployment["spec"].get("replicas", 1)
        available = (deployment.get("status") or {}).get("availableReplicas", 0)
        if available >= wanted:
            continue
        selector = f"{names.LABEL_INSTANCE}={request.parent.name},{names.LABEL_COMPONENT}={component}"
        look = f"see kubectl describe pods -l {selector}"
        if available:
            text = f"{available} of {wanted} pods of Deployment {name} are available; {look}"
            yield Problem(Reason.DEPLOYMENT_DEGRADED, text, warning=True)
        else:
            yield Problem(Reason.DEPLOYMENT_UNAVAILABLE, f"Deployment {name} has no available pods; {look}")


def _sandbox_problems(request: HookRequest, pool: PoolPlan, workspaces: WorkspacePlan) -> list[Problem]:
    found = [
        (
            Reason.ISOLATION_NOT_ENFORCED,
            pool.not_isolated,
            "can reach more than the proxy, so the network plugin does not enforce NetworkPolicies; "
            "install one that does",
        ),
        (
            Reason.POLICY_WIDENED,
            widening_policies(request),
            "other NetworkPolicies let sandboxes out, and policies only add up; narrow their podSelector",
        ),
        (
            Reason.CHILDREN_NOT_READY,
            pool.unreadable + workspaces.unreadable,
            f"have an annotation {names.ANNOTATION_LAST_APPLIED} that is not theirs and are being replaced; "
            "find out who edits it",
        ),
        (
            Reason.CHILDREN_NOT_READY,
            pool.foreign,
            f"carry the label {names.LABEL_CONTROLLER_UID} of this instance and are no sandboxes of it; "
            "remove the label",
        ),
    ]
    return [Problem(reason, f"{_listed(objects)}: {text}") for reason, objects, text in found if objects]


def pool_trouble(pool: PoolPlan) -> str | None:
    """Why the pool does not fill; None when nothing is known to be wrong."""
    if pool.unschedulable:
        return (
            f"no node takes {_listed(pool.unschedulable)}; add nodes, or lower spec.sandbox.resources or "
            "warmPoolSize"
        )
    if pool.missing_images:
        return (
            f"no node gets the image {_listed(pool.missing_images)}; correct its name, or name in "
            "spec.sandbox.imagePullSecrets a Secret with which it may be pulled"
        )
    if pool.stuck:
        return f"not ready for 5 minutes and replaced: {_listed(pool.stuck)}; see kubectl describe and logs"
    return None


def _listed(objects: list[str]) -> str:
    shown = ", ".join(sorted(objects)[:_LISTED_AT_MOST])
    more = len(objects) - _LISTED_AT_MOST
    return shown if more <= 0 else f"{shown} and {more} more"
