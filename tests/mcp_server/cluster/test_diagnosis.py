"""What callers are told about sandboxes that do not answer yet, or not any more."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cli_mcp.names import STATE_ACTIVE, STATE_RETIRING
from cli_mcp.sandbox_config import SessionLimits
from mcp_server.cluster.diagnosis import delay_of, ended, exit_text, quote
from mcp_server.cluster.pods import ContainerExit, ContainerView, SandboxPod

LIMITS = SessionLimits(idle_timeout_seconds=60)


def pod(*containers: ContainerView, scheduled: bool = True, ip: str = "", **fields: str | bool) -> SandboxPod:
    return SandboxPod("p", "uid", "1", containers=containers, scheduled=scheduled, ip=ip, **fields)  # type: ignore[arg-type]


def container(
    waiting: str = "", message: str = "", *, code: int | None = None, restarts: int = 0
) -> ContainerView:
    last_exit = None if code is None else ContainerExit(code, "Error", None)
    return ContainerView(
        "sandbox",
        running=not waiting and code is None,
        waiting=waiting,
        message=message,
        last_exit=last_exit,
        restarts=restarts,
    )


@pytest.mark.parametrize(
    ("starting", "words", "lasts", "hopeless"),
    [
        (pod(scheduled=False), "a node", False, False),
        (pod(scheduled=False, unschedulable="0/1 nodes: insufficient cpu"), "insufficient cpu", False, False),
        (pod(container("ContainerCreating")), "its containers to be made", False, False),
        (pod(container("ErrImagePull", "no such host")), "its containers to be made", False, False),
        (pod(container("ImagePullBackOff", "no such host")), "cannot be pulled", True, True),
        (pod(container("ImagePullBackOff", "gone", restarts=1)), "cannot be pulled", True, False),
        (pod(container("InvalidImageName", "Bad:")), "InvalidImageName", True, True),
        (pod(container("CreateContainerConfigError", "no configmap x")), "no configmap x", False, False),
        (pod(container("CrashLoopBackOff", code=1)), "ended with exit code 1 (Error)", True, False),
        (pod(container("CrashLoopBackOff", code=77)), "its isolation", True, False),
        (pod(container(code=77), ip="10.0.0.1"), "its isolation", True, False),
        (pod(container(code=1), ip="10.0.0.1"), "ended with exit code 1", False, False),
        (pod(container(), ip="10.0.0.1"), "the agent's self-test", False, False),
    ],
)
def test_what_a_starting_sandbox_waits_for(
    starting: SandboxPod, words: str, lasts: bool, hopeless: bool
) -> None:
    delay = delay_of(starting)
    assert words in delay.what
    assert (delay.lasts, delay.hopeless) == (lasts, hopeless)


def test_an_init_container_that_fails_is_seen_before_the_container_that_waits_for_it() -> None:
    agent = ContainerView("agent", waiting="ImagePullBackOff", message="denied")
    assert "denied" in delay_of(pod(agent, container("PodInitializing"))).what


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dial tcp 10.96.0.10:53: i/o timeout", "dial tcp (address): i/o timeout"),
        ("dial tcp [fd00::1]:443: refused", "dial tcp (address): refused"),
        ("lookup ::1 failed", "lookup (address) failed"),
        (
            'pods "a-1" is forbidden:\n exceeded quota: q, used: 10',
            'pods "a-1" is forbidden: exceeded quota: q, used: 10',
        ),
        ("from 10.0.0.1.", "from (address)."),
        ("read tcp 10.0.0.1:37->10.0.0.2:443: reset", "read tcp (address)->(address): reset"),
        ("image python:3.13-slim at 12:30:45", "image python:3.13-slim at 12:30:45"),
        ("x" * 500, "x" * 400 + " …"),
    ],
)
def test_quotes_have_one_line_and_no_addresses(text: str, shown: str) -> None:
    assert quote(text) == shown


def test_running_out_of_memory_is_named_with_the_limit_to_raise() -> None:
    killed = ContainerView("sandbox", last_exit=ContainerExit(137, "OOMKilled", datetime.now(UTC)))
    assert "out of memory (OOMKilled; the limit is spec.sandbox.resources.limits.memory)" in exit_text(killed)


@pytest.mark.parametrize(
    ("last", "limits", "words"),
    [
        (pod(state=STATE_RETIRING, ended_by="DELETE"), LIMITS, "session ended by DELETE"),
        (
            pod(state=STATE_RETIRING, finished=True, reason="Evicted", message="64Mi of disk are full"),
            LIMITS,
            "by the cluster (Evicted: 64Mi of disk are full)",
        ),
        (pod(container(code=1), state=STATE_ACTIVE, finished=True), LIMITS, "ended with exit code 1 (Error)"),
        (pod(state=STATE_ACTIVE, terminating=True), LIMITS, "was deleted"),
        (pod(state=STATE_RETIRING), LIMITS, "was retired."),
        (
            pod(state=STATE_RETIRING),
            SessionLimits(idle_timeout_seconds=60, max_lifetime_seconds=3600),
            "greatest lifetime: 3600 seconds",
        ),
    ],
)
def test_why_a_session_ended(last: SandboxPod, limits: SessionLimits, words: str) -> None:
    assert words in str(ended(last, limits))
