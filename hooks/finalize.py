"""The end of an instance: first whoever could claim or make a sandbox, then the sandboxes, then the rest.

Looks at metadata and children alone, never at the spec, and makes nothing.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import orjson

from cli_mcp import names
from hooks.answer import checked
from hooks.echo import kept
from hooks.pods import parse_time
from hooks.problem import Problem, Reason
from hooks.status import only_ready
from hooks.wire import (
    CONFIG_MAP,
    DEPLOYMENT,
    KINDS_BY_KEY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    HookRequest,
    Manifest,
    is_terminating,
    parse_request,
)

STOP_DEADLINE = timedelta(seconds=60)
"""How long servers may take to end; their own grace is longer, for commands that nobody will miss now."""
_RECHECK_SECONDS = 5
_SANDBOX_KINDS = (POD, PERSISTENT_VOLUME_CLAIM)


def finalize(body: Any, now: datetime) -> Manifest:
    """The answer to a finalize request. Raises MalformedRequest."""
    request = parse_request(body)
    parent = request.parent
    stopping = not _nobody_claims(request) and not _deadline_passed(request, now)
    gone = not any(request.children[kind.key] for kind in _SANDBOX_KINDS)
    doing = "servers stop" if stopping else "sandboxes go"
    answer = {
        "status": only_ready(parent, Problem(Reason.RECONCILING, f"being deleted: {doing}"), now),
        "children": list(_children(request, keep_sandboxes=stopping)),
        "finalized": not stopping and gone,
        "resyncAfterSeconds": _RECHECK_SECONDS,
    }
    return checked(answer, parent)


def _nobody_claims(request: HookRequest) -> bool:
    claimants = (request.parent.names.server, request.parent.names.ssh)
    return all(_is_stopped(request.children[DEPLOYMENT.key].get(name)) for name in claimants)


def _is_stopped(deployment: Manifest | None) -> bool:
    if deployment is None:
        return True
    status = deployment.get("status") or {}
    return (
        deployment["spec"].get("replicas") == 0
        and status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
        and not status.get("replicas")
    )


def _deadline_passed(request: HookRequest, now: datetime) -> bool:
    deleted = parse_time(request.parent.manifest["metadata"].get("deletionTimestamp"))
    return deleted is not None and deleted + STOP_DEADLINE <= now


def _children(request: HookRequest, *, keep_sandboxes: bool) -> Iterator[Manifest]:
    for key, objects in request.children.items():
        kind = KINDS_BY_KEY[key]
        if kind in _SANDBOX_KINDS and not keep_sandboxes:
            continue
        for name, observed in objects.items():
            if is_terminating(observed):
                continue
            echo = kept(observed)
            if echo is None:
                continue
            if kind is DEPLOYMENT and name in (request.parent.names.server, request.parent.names.ssh):
                echo = {**echo, "spec": {**echo.get("spec", {}), "replicas": 0}}
            if kind is CONFIG_MAP and name == request.parent.names.server:
                echo = {**echo, "data": _with_closed_gate(echo.get("data") or {})}
            yield echo


def _with_closed_gate(data: dict[str, str]) -> dict[str, str]:
    """A server that still runs reads this before it claims or makes a sandbox."""
    try:
        config = orjson.loads(data.get(names.SANDBOX_CONFIG_KEY, ""))
    except orjson.JSONDecodeError:
        return data  # nothing that a server could read either
    config["gate"] = {"open": False, "reason": "the instance is being deleted"}
    return {**data, names.SANDBOX_CONFIG_KEY: orjson.dumps(config, option=orjson.OPT_SORT_KEYS).decode()}
