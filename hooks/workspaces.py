"""Persistent workspaces: which claims stay, which retire, which a new warm pod takes over.

A claim outlives its pod by spec.sandbox.workspace.retain, counted from its last use. Like a pod it leaves in
two steps, since a session may come back to it at any moment.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cli_mcp import names
from hooks.echo import UnreadableLastApplied, last_applied_echo, with_label
from hooks.pods import SandboxPod, parse_time
from hooks.wire import PERSISTENT_VOLUME_CLAIM, HookRequest, MalformedRequest, Manifest, is_terminating

CLAIM_TIME = timedelta(seconds=60)
"""A server takes the workspace first and then its pod; after this time it never will."""


@dataclass(frozen=True, slots=True)
class WorkspacePlan:
    """`children` are the claims to keep or to mark. `unused`, by name and with what to return for them, are
    those that no session ever had and no pod uses; `unfit` those that no new session may get, with the time
    at which an unclaimed pod that has one is to go; `taken` all names."""

    children: list[Manifest]
    unused: dict[str, Manifest]
    unfit: dict[str, datetime]
    taken: frozenset[str]
    unreadable: list[str]
    next_check: datetime | None

    def rest(self, used_now: Collection[str], *, give_up: bool) -> list[Manifest]:
        """The unused claims, those that no pod in `used_now` takes over marked to retire if `give_up`."""
        return [
            _retired(echo) if give_up and name not in used_now else echo for name, echo in self.unused.items()
        ]


def plan_workspaces(
    request: HookRequest, pods: Iterable[SandboxPod], retain: timedelta, now: datetime, pool_hash: str | None
) -> WorkspacePlan:
    """`pool_hash` is that of new pods, None while there can be none; then no unused claim is given up."""
    in_use = {claim for pod in pods for claim in _claims_of(pod.manifest)}
    observed = request.children[PERSISTENT_VOLUME_CLAIM.key]
    children: list[Manifest] = []
    unused: dict[str, Manifest] = {}
    unreadable: list[str] = []
    checks: list[datetime] = []
    for name, claim in observed.items():
        if is_terminating(claim) or (_is_retiring(claim) and name not in in_use):
            continue
        try:
            echo = last_applied_echo(claim)
        except UnreadableLastApplied:
            unreadable.append(name)
            continue
        if name in in_use:
            children.append(echo)
        elif _has_session(claim):
            until = _last_used(claim) + retain
            children.append(_retired(echo) if until <= now else echo)
            checks += [] if until <= now else [until]
        elif pool_hash is not None and _labels(claim).get(names.LABEL_POOL_HASH) != pool_hash:
            children.append(_retired(echo))
        else:
            unused[name] = echo
    return WorkspacePlan(
        children=children,
        unused=unused,
        unfit=_unfit(observed, now),
        taken=frozenset(observed),
        unreadable=unreadable,
        next_check=min(checks, default=None),
    )


def _unfit(observed: Mapping[str, Manifest], now: datetime) -> dict[str, datetime]:
    retiring = {name: now for name, claim in observed.items() if _is_retiring(claim)}
    taken = {name: _last_used(claim) + CLAIM_TIME for name, claim in observed.items() if _has_session(claim)}
    return taken | retiring


def _retired(echo: Manifest) -> Manifest:
    return with_label(echo, names.LABEL_STATE, names.STATE_RETIRING)


def _labels(claim: Manifest) -> Mapping[str, str]:
    return claim["metadata"].get("labels") or {}


def _has_session(claim: Manifest) -> bool:
    return names.LABEL_SESSION_ID in _labels(claim)


def _is_retiring(claim: Manifest) -> bool:
    return _labels(claim).get(names.LABEL_STATE) == names.STATE_RETIRING


def _claims_of(pod: Manifest) -> Iterable[str]:
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        claim = volume.get("persistentVolumeClaim")
        if claim:
            yield claim.get("claimName", "")


def _last_used(claim: Manifest) -> datetime:
    metadata = claim["metadata"]
    stamp = parse_time((metadata.get("annotations") or {}).get(names.ANNOTATION_LAST_USED))
    created = parse_time(metadata.get("creationTimestamp"))
    if created is None:
        raise MalformedRequest(f"claim {metadata['name']} has no creationTimestamp")
    return stamp or created
