"""Why a sandbox does not answer yet, or not any more, in words for the caller. Pure."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from cli_mcp.execution import SessionEnded
from cli_mcp.names import ISOLATION_FAILED_EXIT_CODE, STATE_RETIRING
from cli_mcp.sandbox_config import SessionLimits
from mcp_server.cluster.pods import ContainerView, SandboxPod

_MAX_QUOTE_CHARACTERS = 400
# Whatever is made of what addresses are made of, perhaps with a port; many a time and number is, too.
_PERHAPS_ADDRESS = re.compile(r"(?<![\w.:-])(\[?[0-9A-Fa-f:.]*[0-9A-Fa-f:]\]?)(:\d+)?(?!\w|-\w)")
_OUT_OF_MEMORY = "OOMKilled"


@dataclass(frozen=True, slots=True)
class Delay:
    """`what` completes "the sandbox waits for". `lasts` when it will not pass within a call; `hopeless` when
    this very pod will never serve, so that another one should be tried."""

    what: str
    lasts: bool = False
    hopeless: bool = False


def delay_of(pod: SandboxPod) -> Delay:
    """The first thing that stands in the way."""
    if not pod.scheduled:
        return Delay(f"a node: {quote(pod.unschedulable)}" if pod.unschedulable else "a node")
    for container in pod.containers:
        found = _delay_of_container(pod, container)
        if found is not None:
            return found
    if not pod.ip:
        return Delay("its containers to be made")
    return Delay("its isolation to be shown (the agent's self-test)")


def quote(text: str) -> str:
    """What a part of Kubernetes says, short, on one line and without network addresses."""
    line = _PERHAPS_ADDRESS.sub(_without_address, " ".join(text.split()))
    return line if len(line) <= _MAX_QUOTE_CHARACTERS else line[:_MAX_QUOTE_CHARACTERS] + " …"


def _without_address(found: re.Match[str]) -> str:
    text = found[0].rstrip(":.")
    for candidate in (text, text.rpartition(":")[0]):
        try:
            ipaddress.ip_address(candidate.strip("[]"))
        except ValueError:
            continue
        return "(address)" + found[0][len(text) :]
    return found[0]


def exit_text(container: ContainerView) -> str:
    """How the container's last life ended."""
    ended = container.last_exit
    if ended is None:
        return "for an unknown reason"
    if ended.reason == _OUT_OF_MEMORY:
        return f"out of memory ({_OUT_OF_MEMORY}; the limit is spec.sandbox.resources.limits.memory)"
    return f"with exit code {ended.code} ({ended.reason or 'no reason given'})"


def ended(pod: SandboxPod, limits: SessionLimits) -> SessionEnded:
    """Why a session is over whose pod, as it was seen last, does not serve it any more."""
    if pod.ended_by:
        return SessionEnded(f"session ended by {pod.ended_by}")
    lifetime = limits.max_lifetime_seconds
    if pod.reason:
        cause = f"its sandbox was stopped by the cluster ({pod.reason}: {quote(pod.message)})"
    elif pod.state == STATE_RETIRING and lifetime is not None:
        cause = f"its sandbox was retired (greatest lifetime: {lifetime:g} seconds)"
    elif pod.state == STATE_RETIRING:
        cause = "its sandbox was retired"
    elif pod.finished:
        cause = f"its sandbox's container ended {exit_text(pod.sandbox)}"
    else:
        cause = "its sandbox was deleted"
    return SessionEnded(f"The session ended: {cause}. Files and state are gone; the next call begins anew.")


def _delay_of_container(pod: SandboxPod, container: ContainerView) -> Delay | None:
    if container.waiting in _WAITING:
        return _WAITING[container.waiting](container)
    ended = container.last_exit
    if container.running or ended is None or ended.code == 0:
        return None
    return _crashed(container)


def _image(container: ContainerView) -> Delay:
    text = f"its image, which cannot be pulled: {container.waiting}: {quote(container.message)}"
    return Delay(text, lasts=True, hopeless=container.restarts == 0)


def _making(container: ContainerView) -> Delay:
    return Delay(f"its container, which cannot be made: {container.waiting}: {quote(container.message)}")


def _crashed(container: ContainerView) -> Delay:
    if container.last_exit is not None and container.last_exit.code == ISOLATION_FAILED_EXIT_CODE:
        return Delay(
            "its isolation: its own test shows that more can be reached from it than the instance's proxy. "
            "The cluster must enforce NetworkPolicies",
            lasts=True,
        )
    return Delay(f"its container, which ended {exit_text(container)}", lasts=container.waiting != "")


# A first ErrImagePull may be an accident; the kubelet tries again and says ImagePullBackOff if it was none.
_WAITING: dict[str, Callable[[ContainerView], Delay]] = {
    "ImagePullBackOff": _image,
    "InvalidImageName": _image,
    "ErrImageNeverPull": _image,
    "CreateContainerConfigError": _making,
    "CreateContainerError": _making,
    "RunContainerError": _making,
    "CrashLoopBackOff": _crashed,
}
