"""What was deleted and made again must not cut off who works: the proxy's address, the servers' identity.

Running pods keep what they started with: a sandbox has the proxy's ClusterIP in /etc/hosts, a server has the
token of a ServiceAccount that may be gone. Both are repaired here, out of what is observed.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from hooks.network import proxy_address
from hooks.pods import Role, SandboxPod, parse_time
from hooks.problem import Problem, Reason
from hooks.wire import DEPLOYMENT, SERVICE_ACCOUNT, HookRequest, Parent

SAME_ADDRESS_FOR = timedelta(seconds=30)
"""For so long a Service that is made again asks for its old ClusterIP. Somebody else may have got it
meanwhile, and then the API server refuses the Service every time."""
MADE_TOGETHER = timedelta(seconds=60)
"""A ServiceAccount that is younger than its Deployment by more than this has been made again."""
_LISTED_AT_MOST = 5


def address_to_restore(request: HookRequest, pods: Iterable[SandboxPod], now: datetime) -> str | None:
    """The ClusterIP that the proxy's Service should get when it is missing: the one that most running
    sandboxes have. None when the Service is there, and when the old address was asked for long enough."""
    if proxy_address(request) is not None or _not_ready_for(request.parent, now) > SAME_ADDRESS_FOR:
        return None
    known = Counter(address for pod in pods if (address := _address_in(pod, request.parent)) is not None)
    return max(known, key=lambda address: (known[address], address), default=None)


def cut_off(request: HookRequest, pods: Iterable[SandboxPod]) -> list[Problem]:
    """The sessions whose sandboxes have another address of the proxy than it has now."""
    current = proxy_address(request)
    if current is None:
        return []
    stale = sorted(
        pod.name
        for pod in pods
        if pod.role is Role.CLAIMED and _address_in(pod, request.parent) not in (None, current)
    )
    if not stale:
        return []
    more = len(stale) - _LISTED_AT_MOST
    listed = ", ".join(stale[:_LISTED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
    text = f"{listed}: started with another address of the proxy and reach nothing; delete these pods to end"
    return [Problem(Reason.SESSIONS_CUT_OFF, f"{text} their sessions", warning=True)]


def remade_account(request: HookRequest, name: str) -> str:
    """The uid of a ServiceAccount that was made again after the Deployment of its name, whose pods hold a
    token that is no longer good; empty when it was not. In the pod template it makes the Deployment roll."""
    account, deployment = request.child(SERVICE_ACCOUNT, name), request.child(DEPLOYMENT, name)
    if account is None or deployment is None:
        return ""
    made = parse_time(account["metadata"].get("creationTimestamp"))
    rolled_out = parse_time(deployment["metadata"].get("creationTimestamp"))
    if made is None or rolled_out is None or made <= rolled_out + MADE_TOGETHER:
        return ""
    return str(account["metadata"]["uid"])


def _address_in(pod: SandboxPod, parent: Parent) -> str | None:
    """The proxy's address in the pod's /etc/hosts."""
    if pod.role in (Role.FOREIGN, Role.TERMINATING):
        return None
    aliases = (pod.manifest.get("spec") or {}).get("hostAliases") or ()
    return next(
        (alias.get("ip") for alias in aliases if parent.names.proxy in (alias.get("hostnames") or ())), None
    )


def _not_ready_for(parent: Parent, now: datetime) -> timedelta:
    for condition in parent.status.get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return now - (parse_time(condition.get("lastTransitionTime")) or now)
    return timedelta(0)
