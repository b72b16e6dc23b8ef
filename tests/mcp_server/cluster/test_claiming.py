"""The next step of a claim, case by case; test_claiming_model.py has what follows from them together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli_mcp import names
from cli_mcp.execution import NotSessionOwner, SandboxUnavailable
from cli_mcp.names import STATE_ACTIVE, STATE_CLAIMING, STATE_RETIRING, InstanceNames
from cli_mcp.sandbox_config import Gate, SandboxConfig, SessionLimits
from mcp_server.backend import SessionKey
from mcp_server.cluster.claiming import (
    Activate,
    Asked,
    Claim,
    Create,
    Refuse,
    Retire,
    Step,
    Use,
    Wait,
    choose_warm,
    decide,
    is_warm,
)
from mcp_server.cluster.pods import SandboxPod

INSTANCE = InstanceNames("demo")
ME = SessionKey("me", "s")
LIMITS = SessionLimits(idle_timeout_seconds=60)
ASKED = Asked(ME, INSTANCE, "instance-uid", LIMITS)
CONFIG = SandboxConfig(
    gate=Gate(open=True),
    pool_hash="now",
    template={},
    owner_reference={"uid": "instance-uid"},
    limits=LIMITS,
    tools=("bash",),
)
WARM = SandboxPod(
    name="pool-0",
    uid="uid-pool-0",
    revision="1",
    instance="demo",
    component=names.COMPONENT_SANDBOX,
    pool_hash="now",
    service_account=INSTANCE.sandbox,
    controller_uid="instance-uid",
    ready=True,
    ip="10.0.0.1",
)


def pod(name: str, state: str, owner: str = "me", session: str = "s", **fields: object) -> SandboxPod:
    changed = replace(WARM, name=name, uid=f"uid-{name}", state=state, owner=owner, session_id=session)
    return replace(changed, **fields)  # type: ignore[arg-type]


A, B = pod("a", STATE_ACTIVE), pod("b", STATE_CLAIMING)
C = pod("c", STATE_CLAIMING)
ON_DEMAND = "cli-mcp-demo-s-17bbf1ee59-"


def step(*pods: SandboxPod, asked: Asked = ASKED, warm: SandboxPod | None = WARM) -> Step:
    return decide(asked, pods, lambda: warm)


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ((), Claim(WARM)),
        ((A,), Use(A)),
        ((B,), Activate(B)),
        ((A, B), Retire(B)),
        ((B, C), Retire(C)),
        ((A, B, C), Retire(C)),
        ((pod("r", STATE_RETIRING),), Claim(WARM)),
        ((pod("t", STATE_ACTIVE, terminating=True),), Claim(WARM)),
        ((pod("f", STATE_ACTIVE, finished=True),), Retire(pod("f", STATE_ACTIVE, finished=True))),
        ((pod("f", STATE_RETIRING, finished=True),), Claim(WARM)),
        ((pod("f", STATE_ACTIVE, finished=True, terminating=True),), Claim(WARM)),
        ((pod("x", STATE_ACTIVE, service_account="default"),), Claim(WARM)),
        ((pod("x", STATE_ACTIVE, controller_uid="another"),), Claim(WARM)),
        ((pod("x", STATE_ACTIVE, controller_uid=""),), Claim(WARM)),
        ((pod("x", STATE_ACTIVE, instance="another"),), Claim(WARM)),
        ((pod("x", STATE_ACTIVE, session="another"),), Claim(WARM)),
    ],
)
def test_the_next_step(pods: tuple[SandboxPod, ...], wanted: Step) -> None:
    assert step(*pods) == wanted


def test_without_a_warm_pod_the_lowest_free_name_is_made() -> None:
    first = step(warm=None)
    assert isinstance(first, Create)
    prefix = first.name.removesuffix("0")
    assert prefix.startswith("cli-mcp-demo-s-")
    gone = (pod(f"{prefix}0", STATE_RETIRING), pod(f"{prefix}2", STATE_RETIRING))
    assert step(*gone, warm=None) == Create(f"{prefix}1")
    taken = replace(ASKED, taken=frozenset((f"{prefix}0", f"{prefix}1")))
    assert step(asked=taken, warm=None) == Create(f"{prefix}2")


@pytest.mark.parametrize("state", [STATE_ACTIVE, STATE_CLAIMING])
def test_a_session_of_another_owner_is_refused(state: str) -> None:
    refused = step(pod("a", state, owner="another"))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, NotSessionOwner)


def test_a_claim_that_lost_to_another_owner_is_given_up_first() -> None:
    mine = pod("b", STATE_CLAIMING)
    assert step(pod("a", STATE_ACTIVE, owner="another"), mine) == Retire(mine)


@pytest.mark.parametrize(("pods", "refused"), [((), True), ((B,), True), ((A,), False)])
def test_a_closed_gate_stops_claims_and_no_session_that_there_is(
    pods: tuple[SandboxPod, ...], refused: bool
) -> None:
    found = step(*pods, asked=replace(ASKED, closed="the proxy is not ready"))
    assert isinstance(found, Refuse if refused else Use)
    if isinstance(found, Refuse):
        assert "the proxy is not ready" in str(found.error)


def limited(total: int | None = None, own: int | None = None) -> Asked:
    limits = SessionLimits(idle_timeout_seconds=60, max_sessions=total, max_sessions_per_owner=own)
    return replace(ASKED, limits=limits)


OTHER = pod("o", STATE_ACTIVE, session="other")
FOREIGN = pod("o", STATE_ACTIVE, session="other", owner="another")
EARLIER, LATER = (pod("o", STATE_CLAIMING, session=it) for it in ("r", "t"))


@pytest.mark.parametrize(
    ("asked", "pods", "wanted"),
    [
        (limited(total=1), (), Claim),
        (limited(total=1), (OTHER,), Refuse),
        (limited(total=1), (LATER,), Refuse),
        (limited(total=2), (OTHER,), Claim),
        (limited(own=1), (OTHER,), Refuse),
        (limited(own=1), (FOREIGN,), Claim),
        (limited(total=1), (A, OTHER), Use),
        (limited(total=1), (B, OTHER), Retire),
        (limited(total=1), (B, LATER), Wait),
        (limited(total=1), (B, EARLIER), Retire),
        (limited(total=2), (B, EARLIER), Activate),
        (limited(total=2), (B, OTHER, LATER), Wait),
        (limited(total=1), (pod("o", STATE_RETIRING, session="other"),), Claim),
    ],
)
def test_limits(asked: Asked, pods: tuple[SandboxPod, ...], wanted: type[Step]) -> None:
    assert isinstance(step(*pods, asked=asked), wanted)


@pytest.mark.parametrize(
    ("asked", "pods", "said"),
    [
        (limited(total=5, own=1), (OTHER,), "of yours are open as may be (maxSessionsPerOwner: 1)"),
        (limited(total=1, own=5), (OTHER,), "of this instance are open as may be (maxSessions: 1)"),
        (
            limited(total=1, own=1),
            (FOREIGN,),
            "of this instance are open as may be (maxSessions: 1)",
        ),
        (limited(total=1), (OTHER, LATER), "of this instance are open as may be (maxSessions: 1)"),
    ],
    ids=["own", "all", "all by another's", "with a claim beyond it"],
)
def test_who_is_over_a_limit_is_told_which_one_and_what_to_do(
    asked: Asked, pods: tuple[SandboxPod, ...], said: str
) -> None:
    refused = step(*pods, asked=asked)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, SandboxUnavailable)
    assert said in str(refused.error)
    assert "DELETE /sessions/ID" in str(refused.error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ready", False),
        ("ip", ""),
        ("terminating", True),
        ("finished", True),
        ("state", STATE_RETIRING),
        ("state", STATE_CLAIMING),
        ("session_id", "s"),
        ("pool_hash", "before"),
        ("service_account", "default"),
        ("controller_uid", "another"),
        ("instance", "another"),
        ("component", "proxy"),
    ],
)
def test_only_a_ready_pod_of_the_current_template_is_warm(field: str, value: object) -> None:
    assert is_warm(WARM, INSTANCE, CONFIG)
    assert not is_warm(replace(WARM, **{field: value}), INSTANCE, CONFIG)  # type: ignore[arg-type]


def test_replicas_choose_one_warm_pod_for_a_session_and_sessions_different_ones() -> None:
    pods = [replace(WARM, uid=f"uid-{number}") for number in range(50)]
    chosen = {choose_warm(SessionKey("me", f"s{number}"), pods) for number in range(50)}
    assert len(chosen) > 20
    assert choose_warm(ME, pods) == choose_warm(ME, reversed(pods))
    assert choose_warm(ME, []) is None
