"""Which pod is a session's sandbox: the next step of a claim, decided from one consistent list of pods.

The label `state` goes from none by `claiming` and `active` to `retiring`, and never back. Whoever looks for a
session's pod repeats: list, decide, write, where every write is a compare-and-swap on the listed revision, or
a creation under a name that every replica would choose. So a step that comes late, or twice, or whose answer
was lost, changes nothing; and any replica can finish or undo what another began before it died. At most one
pod of a session is ever active, and only an active one gets a command.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count

from cli_mcp import names
from cli_mcp.execution import ExecutionError, NotSessionOwner, SandboxUnavailable
from cli_mcp.sandbox_config import SandboxConfig, SessionLimits
from mcp_server.backend import SessionKey
from mcp_server.cluster.limits import Room, room, too_many
from mcp_server.cluster.pods import SandboxPod

NOT_THE_OWNER = "Not run: this session belongs to another caller. Use another id."
_HASH_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class Use:
    """The session's sandbox is this one."""

    pod: SandboxPod


@dataclass(frozen=True, slots=True)
class Activate:
    """Compare-and-swap from claiming to active."""

    pod: SandboxPod


@dataclass(frozen=True, slots=True)
class Retire:
    """Compare-and-swap to retiring."""

    pod: SandboxPod


@dataclass(frozen=True, slots=True)
class Claim:
    """Compare-and-swap a warm pod to claiming, with session, owner and time in the same write."""

    pod: SandboxPod


@dataclass(frozen=True, slots=True)
class Create:
    """Make a pod of this name that is born claiming, with a workspace that the session has, or its own."""

    name: str
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Others are about to take, or to give back, what this session needs: list again in a moment."""


@dataclass(frozen=True, slots=True)
class Refuse:
    error: ExecutionError


WarmPod = Callable[[], SandboxPod | None]
Step = Use | Activate | Retire | Claim | Create | Wait | Refuse


@dataclass(frozen=True, slots=True)
class Asked:
    """What does not change while a session looks for its pod.

    `closed` says why no sandbox may be claimed or made now; "" when it may. `controller_uid` is that of the
    instance, which all its pods are controlled by.
    """

    session: SessionKey
    instance: names.InstanceNames
    controller_uid: str
    limits: SessionLimits
    closed: str = ""
    taken: Collection[str] = field(default_factory=frozenset)
    """Names that are known to be taken though no list of the session's pods shows them."""
    workspace: str = ""
    """The persistent workspace that the session left behind."""


def decide(asked: Asked, listed: Iterable[SandboxPod], warm: WarmPod) -> Step:
    """`listed` has at least all pods of the session, and all sessions' pods where there are limits; `warm` is
    asked for the pod to claim if there is to be a claim, and says None for creating one."""
    pods = [pod for pod in listed if is_sandbox_of(pod, asked.instance, asked.controller_uid)]
    own = sorted((pod for pod in pods if pod.session_id == asked.session.id), key=lambda pod: pod.name)
    for pod in own:
        if pod.finished and not pod.terminating and pod.state != names.STATE_RETIRING:
            return Retire(pod)
    active = [pod for pod in own if pod.usable]
    claiming = [pod for pod in own if pod.live and pod.state == names.STATE_CLAIMING]
    surplus = active[1:] + (claiming if active else claiming[1:])
    if surplus:
        return Retire(surplus[-1])
    if active or claiming:
        return _continue(asked, (active or claiming)[0], pods)
    return _begin(asked, own, pods, warm)


def _continue(asked: Asked, pod: SandboxPod, pods: list[SandboxPod]) -> Step:
    if pod.owner != asked.session.owner:
        return Refuse(NotSessionOwner(NOT_THE_OWNER))
    if pod.state == names.STATE_ACTIVE:
        return Use(pod)
    if asked.closed:
        return Refuse(SandboxUnavailable(f"Not run: no sandbox can be had now: {asked.closed}."))
    steps: dict[Room, Step] = {Room.FREE: Activate(pod), Room.CONTENDED: Wait(), Room.NONE: Retire(pod)}
    return steps[room(asked.session, pods, asked.limits, claims=True)]


def _begin(asked: Asked, own: list[SandboxPod], pods: list[SandboxPod], warm: WarmPod) -> Step:
    if asked.closed:
        return Refuse(SandboxUnavailable(f"Not run: no sandbox can be had now: {asked.closed}."))
    if room(asked.session, pods, asked.limits, claims=False) is not Room.FREE:
        return Refuse(too_many(asked.session, pods, asked.limits))
    found = warm()
    if found is not None:
        return Claim(found)
    taken = {pod.name for pod in own} | {*asked.taken}
    return Create(on_demand_name(asked.instance, asked.session, taken), asked.workspace)


def is_sandbox_of(pod: SandboxPod, instance: names.InstanceNames, controller_uid: str) -> bool:
    """Whether a pod is what its labels say. Others may make pods with such labels: no command goes there."""
    return (
        pod.instance == instance.instance
        and pod.component == names.COMPONENT_SANDBOX
        and pod.service_account == instance.sandbox
        and bool(controller_uid)
        and pod.controller_uid == controller_uid
    )


def is_warm(pod: SandboxPod, instance: names.InstanceNames, config: SandboxConfig) -> bool:
    """Whether any session may claim it now."""
    return (
        pod.ready
        and pod.live
        and not pod.state
        and not pod.session_id
        and bool(pod.ip)
        and pod.pool_hash == config.pool_hash
        and is_sandbox_of(pod, instance, config.owner_reference.get("uid", ""))
    )


def choose_warm(session: SessionKey, candidates: Iterable[SandboxPod]) -> SandboxPod | None:
    """Rendezvous hashing: all replicas choose the same pod for a session, and others for other sessions."""
    return max(candidates, key=lambda pod: _digest(f"{session.id}/{pod.uid}"), default=None)


def on_demand_name(instance: names.InstanceNames, session: SessionKey, taken: Collection[str]) -> str:
    """The lowest free number: two replicas that create at once collide (409) instead of making two."""
    prefix = f"{instance.on_demand_prefix}{_digest(session.id)[:_HASH_CHARACTERS]}-"
    return next(name for name in (f"{prefix}{number}" for number in count()) if name not in taken)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
