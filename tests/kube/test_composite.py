"""What only a model can show of Metacontroller: time, lagging caches, lost requests, crashes, missing rights.

Everything that the real one can be asked, too, is in tests/e2e/test_metacontroller_twin.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.kube.composite import CompositeController
from tests.kube.errors import ApiError
from tests.kube.hook_wire import ControllerCrashed, HookAnswer, in_process
from tests.kube.objects import name_of
from tests.kube.rbac import User
from tests.kube.samples import config_map, last_applied_echo, observed_pods, of_kind, pod
from tests.kube.worlds import ModelWorld

if TYPE_CHECKING:
    from tests.kube.connection import Call
    from tests.kube.objects import Object


def seconds_to_next(world: ModelWorld) -> float:
    delay = world.controller.queue.seconds_to_next()
    assert delay is not None
    return delay


# --- time -------------------------------------------------------------------------------------------------


def test_backoff_doubles_from_5_ms_to_1000_s_and_any_event_syncs_at_once() -> None:
    world = ModelWorld()
    world.hooks.raw = HookAnswer(500, b"")
    world.parent()
    delays = []
    for _ in range(20):
        world.controller.run()
        delays.append(seconds_to_next(world))
        world.clock.advance(delays[-1])
    assert delays[:4] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert delays[-1] == 1000
    world.controller.run()
    syncs = len(world.controller.syncs)
    world.touch()
    world.controller.run()
    assert len(world.controller.syncs) == syncs + 1


def test_a_success_ends_the_backoff() -> None:
    world = ModelWorld()
    world.hooks.raw = HookAnswer(500, b"")
    world.parent()
    for _ in range(5):
        world.settle()
    world.hooks.raw = None
    world.touch()
    world.settle()
    world.hooks.raw = HookAnswer(500, b"")
    world.touch()
    world.controller.run()
    assert seconds_to_next(world) == pytest.approx(0.005)


@pytest.mark.parametrize("seconds", [2, 0])
def test_429_is_tried_again_after_retry_after_without_backoff(seconds: int) -> None:
    world = ModelWorld()
    world.hooks.raw = HookAnswer(429, b"", seconds)
    world.parent()
    for _ in range(3):
        world.controller.deliver()
        world.controller.sync_next()
        assert seconds_to_next(world) == seconds
        world.clock.advance(seconds)


def test_of_two_resyncs_that_were_asked_for_the_earliest_counts() -> None:
    world = ModelWorld()
    wishes = iter((1.5, 30, 30))
    world.hooks.answer = lambda _: {"children": [], "resyncAfterSeconds": next(wishes)}
    world.parent()
    world.controller.run()
    world.touch()
    world.controller.run()
    assert seconds_to_next(world) == 1.5


def test_the_resync_period_syncs_every_parent() -> None:
    world = ModelWorld(resyncPeriodSeconds=120)
    for name in ("a", "b"):
        world.parent(name)
    world.controller.run()
    count = len(world.hooks.requests)
    world.clock.advance(119)
    world.controller.run()
    assert len(world.hooks.requests) == count
    world.clock.advance(1)
    world.controller.run()
    assert len(world.hooks.requests) == count + 2


def test_a_customize_answer_is_asked_for_again_after_20_minutes() -> None:
    world = ModelWorld(customizes=True)
    for name in ("one", "two"):
        world.create(world.placed(of_kind("Secret", name)))

    def rule(name: str) -> list[Object]:
        return [{"apiVersion": "v1", "resource": "secrets", "namespace": world.namespace, "names": [name]}]

    world.hooks.related = rule("one")
    world.parent()
    world.settle()
    world.hooks.related = rule("two")
    for seconds, seen in ((19 * 60, "one"), (60, "two")):
        world.clock.advance(seconds)
        world.touch()
        world.settle()
        assert list(world.hooks.requests[-1]["related"]["Secret.v1"]) == [f"default/{seen}"]


# --- the process ------------------------------------------------------------------------------------------


def test_a_null_among_the_children_ends_the_process_before_anything_is_written() -> None:
    world = ModelWorld()
    world.hooks.answer = lambda _: {"children": [config_map(), None]}
    world.parent()
    with pytest.raises(ControllerCrashed):
        world.controller.run()
    assert world.get("ConfigMap", "c") is None


def test_a_restarted_controller_syncs_every_parent_and_changes_nothing() -> None:
    world = ModelWorld()
    world.hooks.desired = lambda _: [config_map()]
    for name in ("a", "b"):
        world.parent(name)
    world.run()
    count, revision = len(world.hooks.requests), world.api.storage.revision
    world.restart()
    world.run()
    assert len(world.hooks.requests) == count + 2
    assert world.api.storage.revision == revision


# --- caches that lag --------------------------------------------------------------------------------------


def test_a_cache_that_catches_up_step_by_step_shows_each_state_on_the_way() -> None:
    world = ModelWorld()
    world.hooks.desired = lambda request: [last_applied_echo(it) for it in observed_pods(request)] or [pod()]
    world.parent()
    world.run()
    for value in ("1", "2", "3"):
        world.label("p", step=value)
    seen = []
    for _ in range(3):
        world.controller.deliver(limit=1)
        world.controller.sync_next()
        (shown,) = observed_pods(world.hooks.requests[-1])
        seen.append(shown["metadata"]["labels"]["step"])
    assert seen == ["1", "2", "3"]


# --- the garbage collector -------------------------------------------------------------------


def test_a_child_in_another_namespace_is_collected_never_seen_and_created_again() -> None:
    world = ModelWorld()
    strayed = config_map()
    strayed["metadata"]["namespace"] = "kube-system"
    world.hooks.desired = lambda _: [strayed]
    world.parent()
    assert world.run() == ["create configmaps c 201"]
    world.collect_garbage()
    assert world.api.find("configmaps", "kube-system", "c") is None
    world.touch()
    assert world.run() == ["create configmaps c 201"]


# --- requests that are lost or forbidden ------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_request_or_answer_is_an_error_and_the_next_sync_makes_it_good(moment: str) -> None:
    world = ModelWorld()
    world.hooks.desired = lambda _: [config_map()]
    world.parent()

    def lose(call: Call) -> None:
        if call.verb == "create":
            setattr(world.controller.connection, moment, None)
            raise OSError("connection reset")

    setattr(world.controller.connection, moment, lose)
    world.settle()
    first, *others = (len(sync.errors) for sync in world.controller.syncs)
    assert (first, sum(others)) == (1, 0)
    assert world.get("ConfigMap", "c") is not None


def test_a_hook_that_is_down_changes_nothing() -> None:
    world = ModelWorld()
    world.hooks.desired = lambda _: [config_map(name_of(_["parent"]))]
    world.parent()
    world.run()

    def down(name: Any, body: bytes) -> HookAnswer:
        raise ConnectionRefusedError("connection refused")

    world.restart(down)
    assert world.settle() == []
    assert world.controller.syncs[-1].errors


def test_a_controller_without_rights_fails_with_403() -> None:
    world = ModelWorld()
    world.parent()
    controller = CompositeController(world.api, world.controller.settings, in_process(), User("nobody"))
    controller.run()
    (error,) = controller.syncs[-1].errors
    assert isinstance(error, ApiError)
    assert error.code == 403
